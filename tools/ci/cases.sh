#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# What the GoogleTest programs of a build folder did when CTest ran them last: how many cases passed,
# why others were skipped, and which took longest. cases.sh [build folder] [how many of the slowest]
set -euo pipefail
results=${1:-build}/tests/results
slowest=${2:-10}
compgen -G "$results/*.xml" > /dev/null || { echo "no results under $results"; exit 1; }

# GoogleTest writes every case as one line, and what was said about it as lines below. Prints
# `seconds program case` and, with the mark in front, what is to be said once.
cases=$(awk '
  function field(name,   found) {
    if (!match($0, " " name "=\"[^\"]*\"")) return ""
    found = substr($0, RSTART, RLENGTH)
    sub(/^[^"]*"/, "", found)
    sub(/"$/, "", found)
    return found
  }
  # A case without a date did not run, because the environment of all cases was skipped.
  /<testcase / && field("status") == "run" && field("timestamp") ~ /^1970/ { absent++ }
  /<testcase / && field("status") == "run" && field("timestamp") !~ /^1970/ {
    ran++
    failed_here = 0
    entry = FILENAME
    sub(/.*\//, "", entry)
    sub(/\.xml$/, "", entry)
    printf "%9.2f s  %s  %s.%s\n", field("time"), entry, field("classname"), field("name")
  }
  /<property name="part" / { in_part++ }
  /<failure / && !failed_here { failed_here = 1; failed++ }
  /<skipped / {
    skipped++
    reason = field("message")
    sub(/^[^&]*&#x0A;/, "", reason)
    sub(/&#x0A;.*/, "", reason)
    gsub(/&quot;/, "\"", reason)
    gsub(/&apos;/, "\047", reason)
    reasons[reason]++
  }
  END {
    printf "# %d cases ran: %d passed, %d failed, %d were skipped\n", ran,
           ran - failed - skipped, failed, skipped
    if (absent) printf "# %9d did not run: their models were to be where there is no device\n", absent
    if (in_part) printf "# %9d ran the part of theirs that is this commit\047s turn (SHARPI_TEST_TURN=all runs everything)\n", in_part
    for (reason in reasons) printf "# %9d skipped: %s\n", reasons[reason], reason
  }' "$results"/*.xml)
sed -n 's/^# //p' <<< "$cases"
echo "the slowest:"
grep -v '^#' <<< "$cases" | sort -rn | sed -n "1,${slowest}p"
