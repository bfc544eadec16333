#!/bin/sh
# Runs a refresh and writes its exit status and the newest night for node_exporter's textfile collector. The schedulers'
# examples start it in place of sfumato:
#
#     refresh_metrics.sh city /var/lib/sfumato/published /var/lib/node_exporter/city.prom \
#         /opt/sfumato/bin/sfumato refresh --config /etc/sfumato/refresh.yaml
#
# Arguments: the refresh's name, the folder of its releases (a local `output`), the file to write, and the command.
# Exits with the command's own status. All figures are public: an exit status, times, the date of latest.json.
if [ $# -lt 4 ]; then
    echo "usage: $0 NAME FOLDER_OF_RELEASES FILE COMMAND..." >&2
    exit 2
fi
name=$1 published=$2 file=$3
shift 3
"$@"
status=$?
write() {
    printf '# HELP %s %s\n# TYPE %s gauge\n%s{refresh="%s"} %s\n' "$1" "$2" "$1" "$1" "$name" "$3"
}
partial="$file.$$"
{
    write sfumato_refresh_exit_status 'Exit status of the last run.' "$status"
    write sfumato_refresh_run_timestamp_seconds 'When the last run ended.' "$(date +%s)"
    night=$(sed -n 's/^ *"date": "\([0-9-]*\)".*/\1/p' "$published/latest.json" 2>/dev/null)
    if [ -n "$night" ]; then
        write sfumato_refresh_newest_night_timestamp_seconds 'When the newest published night began, in UTC.' \
            "$(date -u -d "$night" +%s)"
    fi
} >"$partial" && mv "$partial" "$file"  # in one step, so that no half of it is read
exit "$status"
