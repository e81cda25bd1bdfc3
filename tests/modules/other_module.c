/* SPDX-License-Identifier: MIT */
/* A library beside ours under a module's name. Of another build: its table has the two texts that
 * every version has, and nothing behind them that could be called. With SHARPI_TEST_OTHER_TIER the
 * table is another tier's, with SHARPI_TEST_NO_TABLE there is none. */
#ifdef SHARPI_TEST_OTHER_TIER
#define TIER "Abacus"
#else
#define TIER "CUDA"
#endif

struct table {
  const char *name, *interface;
};

#ifndef SHARPI_TEST_NO_TABLE
const struct table* sharpi_tier_module(void);
const struct table* sharpi_tier_module(void) {
  static const struct table kTable = {TIER, "0.9.0-0123456789abcdef"};
  return &kTable;
}
#else
int sharpi_nothing(void);
int sharpi_nothing(void) {
  return 0;
}
#endif
