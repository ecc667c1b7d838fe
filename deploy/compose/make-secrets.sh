#!/bin/sh
# Writes deploy/secrets/ for deploy/compose.yaml: passwords, and the service file by which daemons find them.
#
# Files are readable by all, because a container reads them under a number that this machine does not
# know; the folder around them can be entered by nobody but you.
set -eu

cd "$(dirname "$0")/.."
if [ -e secrets ]; then
    echo "deploy/secrets is there already; the servers know its passwords" >&2
    exit 1
fi

random() {
    od -An -N24 -tx1 /dev/urandom | tr -d ' \n'
}

umask 077
mkdir secrets
umask 022
random > secrets/postgres_password
for database in ams1 ams2 fra1 bi; do
    password=$(random)
    printf '%s' "$password" > "secrets/${database}_password"
    printf '[%s]\nhost=%s\ndbname=app\nuser=cascade\npassword=%s\n\n' "$database" "$database" "$password" \
        >> secrets/pg_service.conf
done
echo "wrote deploy/secrets"
