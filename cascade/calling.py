"""Calling handlers: coroutines here, plain functions in threads, all within their time; and how errors are stored."""

from __future__ import annotations

import asyncio
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from cascade.errors import CascadeError, PayloadError
from cascade.handlers import Bound
from cascade.work import Bury, Delivery, Retry


class HandlerMissingError(CascadeError):
    """No handler takes messages of this type."""


class OvertimeError(TimeoutError):
    """A handler in a thread took too long; the thread is still at it."""

    def __init__(self, message: str, future: asyncio.Future[Any]) -> None:
        super().__init__(message)
        self.future = future


class Caller:
    """Calls handlers, with so many threads as may be wanted at a time."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._threads: ThreadPoolExecutor | None = None
        self._busy: set[asyncio.Future[Any]] = set()

    @property
    def is_busy(self) -> bool:
        """Whether a handler is in a thread."""
        return bool(self._busy)

    async def call(self, bound: Bound, delivery: Delivery[Any], threads: int) -> Any:
        """Return what a handler returns, or raise what it raises; TimeoutError past its time."""
        arguments = bound.arguments(delivery)
        if not bound.is_async:
            return await self._call_in_thread(bound, arguments, threads)
        if bound.time_limit_s is None:
            return await bound.call(*arguments)
        try:
            async with asyncio.timeout(bound.time_limit_s) as limit:
                return await bound.call(*arguments)
        except TimeoutError as error:
            if limit.expired():
                raise TimeoutError(f"the handler took longer than {bound.time_limit_s:g} s") from error
            raise

    async def _call_in_thread(self, bound: Bound, arguments: tuple[Any, ...], threads: int) -> Any:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(threads, thread_name_prefix=f"cascade-{self._name}")
        future = asyncio.get_running_loop().run_in_executor(self._threads, bound.call, *arguments)
        # A thread cannot be ended: past its time it goes on, and what comes of it no longer counts.
        self._busy.add(future)
        future.add_done_callback(self._forget)
        done, _ = await asyncio.wait((future,), timeout=bound.time_limit_s)
        if done:
            return future.result()
        raise OvertimeError(f"the handler took longer than {bound.time_limit_s:g} s, and goes on in its thread", future)

    def _forget(self, future: asyncio.Future[Any]) -> None:
        self._busy.discard(future)
        if not future.cancelled():
            future.exception()  # Looked at, as far as asyncio is concerned.

    def close(self) -> None:
        """Begin nothing any more; threads that are at it go on."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None


def describe(error: BaseException) -> str:
    """Return an error as it is stored: what it says in the first line, then where it came from."""
    if isinstance(error, OvertimeError):
        text = f"TimeoutError: {error}"
    elif isinstance(error, Retry | Bury | HandlerMissingError | PayloadError):
        text = f"{type(error).__name__}: {error}"
    else:
        first = "".join(traceback.format_exception_only(error)).strip()
        text = f"{first}\n\n{''.join(traceback.format_exception(error))}"
    # What a text in PostgreSQL cannot hold.
    return text.replace("\0", "\\0").encode(errors="backslashreplace").decode()
