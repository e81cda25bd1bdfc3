// SPDX-License-Identifier: MIT
// The parts of matrix_check in gemm_check.cu, moe_check.cu and moe_speed_check.cu. Thread rule: one
// thread.
#pragma once

namespace sharpi::cuda::check {

struct Bench;
/// Products of many rows, experts, router, sampling. quick: a small part.
void run_gemm_tests(Bench& b, bool quick);
void run_gemm_bench(Bench& b);
/// moe_check.cu, moe_speed_check.cu: experts of one row in one launch. quick: two shapes.
void run_moe_tests(Bench& b, bool quick);
void run_moe_bench(Bench& b);
void run_moe_rows_bench(Bench& b);
void run_moe_tuning(Bench& b);
/// One launch of some shapes each, for a profiler.
void run_gemm_profile(Bench& b);

}  // namespace sharpi::cuda::check
