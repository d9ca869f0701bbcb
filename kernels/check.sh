#!/bin/sh
# Builds tests/check.cpp with sanitizers under build/ and runs it: check.sh [address|thread] [full]
set -eu
cd "$(dirname "$0")"
sanitizer=${1:-address}
cmake -S . -B "build/check-$sanitizer" -DGRAFTLM_CHECK="$sanitizer" -DCMAKE_BUILD_TYPE=None >/dev/null
cmake --build "build/check-$sanitizer" --parallel 2
"build/check-$sanitizer/check" "${2:-}"
