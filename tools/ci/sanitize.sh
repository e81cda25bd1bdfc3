#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The tests under AddressSanitizer (with leaks) and UndefinedBehaviorSanitizer, assertions on; then the
# server with load from outside.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

configure sanitize
build build-sanitize
# A refused allocation is a case that tests ask for, so it must come back as null.
export ASAN_OPTIONS=allocator_may_return_null=1:strict_string_checks=1:detect_stack_use_after_return=1
export UBSAN_OPTIONS=print_stacktrace=1
# Left out: checks of the source text; real models, whose thousands of tokens take a quarter of an hour
# in this build and run the code of the fixtures; the needle prompts, the codecs along whole trajectories and in
# long calls, the host's drafts on splits, most models' long prompts and chunk sizes, the keep sets of long
# prompts, and 200 000 draws behind drafts, and a stream that waits for a long prompt,
# which run the code of shorter tests over thousands of tokens.
long='*Needle*:*BoundedSessionsNever*:*ReadInBatches*'
long+=':*AreKeptUpToScoreTies*:*OfOneLongCall*'
long+=':*LongChat*:DraftDistribution*:*SmolLm2*'
long+=':*LongPromptsDoNotDependOnChunks*/gemma4kv'
long+=':*LongOracle*/qwen3*:*LongOracle*/gemma4:*LongOracle*/olmoe:*TheSameRowsStayWithAny*'
long+=':DraftSplits.TheHosts*'
long+=':Waiting.AStreamSaysHowFar*'
long+=':*Invariance*/qwen3:*Invariance*/olmoe:*Invariance*/gemma4:*Invariance*/qwen3moe'
export GTEST_FILTER="-$long"
export SHARPI_REPLAY_SEQUENCES=4000  # of the 10 000 that `make test` goes through
rm -rf build-sanitize/tests/results
status=0
ctest --test-dir build-sanitize --output-on-failure -j "$jobs" -E '^source\.|_fuzz$|^(real_files|perplexity)_test' || status=$?
tools/ci/cases.sh build-sanitize
sanitized_server build-sanitize || status=1
exit "$status"
