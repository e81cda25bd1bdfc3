// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "attention_cases.h"

namespace sharpi::cpu {
namespace {

void expect_same_bits(const Output& a, const Output& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(std::memcmp(a[i].data(), b[i].data(), a[i].size() * 4), 0) << "row " << i;
  }
}

struct Path {
  Isa isa;
  bool exact;
  Run run(uint32_t n_threads = 1) const { return {isa, exact, n_threads}; }
  /// Relative error of a product with rows of s: 0 when f32 throughout, else what is left over of
  /// one bf16, or of the two that AMX takes for rows stored in f32.
  double relative(const Sequence& s) const {
    const bool wide = s.shape.k == KvDtype::kF32 || s.shape.v == KvDtype::kF32;
    const AttentionKernels& all = kernels_of(isa).attention;
    if (exact || is_f32(wide ? all.wide_chunk : all.chunk)) return 0.0;
    return wide ? 0x1p-15 : 0x1p-8;
  }
};

std::vector<Path> paths() {
  std::vector<Path> all;
  for (const Isa isa : runnable_isas()) all.push_back({isa, true});
  for (const Isa isa : runnable_isas()) {
    const AttentionKernels& kernels = kernels_of(isa).attention;
    if (&kernels.chunk.table != &kernels.exact.table) all.push_back({isa, false});
  }
  return all;
}

class Attention : public testing::TestWithParam<Path> {};
INSTANTIATE_TEST_SUITE_P(Paths, Attention, testing::ValuesIn(paths()), [](const auto& p) {
  return std::string(isa_name(p.param.isa)) + (p.param.exact ? "_exact" : "_fast");
});

TEST_P(Attention, EveryHeadSizeMatchesDouble) {
  for (const uint32_t dim : {64u, 80u, 96u, 128u, 256u, 512u, 24u, 16u}) {
    for (const KvDtype dtype : kCodecs) {
      if (kv_rotation(dtype, dim) == 8) continue;  // no such rows: q4_test has them refused
      Shape shape{.n_heads = 8, .n_kv = 4, .dim = dim, .k = dtype, .v = dtype};
      const Sequence s(shape, 77, dim);
      expect_full(s, 70, run_full(GetParam().run(), s, 70, {77}), GetParam().relative(s));
    }
  }
}

TEST_P(Attention, EveryPairOfCodecsMatchesDouble) {
  for (const KvDtype k : kCodecs) {
    for (const KvDtype v : kCodecs) {
      const Sequence s({.n_heads = 6, .n_kv = 2, .dim = 32, .k = k, .v = v}, 131, 1);
      expect_full(s, 126, run_full(GetParam().run(), s, 126, {131}), GetParam().relative(s));
    }
  }
}

TEST_P(Attention, EveryGroupSizeMatchesDouble) {
  for (uint32_t group = 1; group <= 16; ++group) {
    const Sequence s({.n_heads = 2 * group, .n_kv = 2, .dim = 64, .v = KvDtype::kBf16}, 68, group);
    expect_full(s, 61, run_full(GetParam().run(), s, 61, {68}), GetParam().relative(s));
  }
}

TEST_P(Attention, EveryLengthUpToThreeTilesMatchesDouble) {
  const Sequence s({.n_heads = 2, .n_kv = 1, .dim = 32, .k = KvDtype::kQ8_0}, 200, 2);
  for (uint64_t n = 0; n < 200; ++n) {
    expect_full(s, n, run_full(GetParam().run(), s, n, {n + 1}), GetParam().relative(s));
  }
}

TEST_P(Attention, PrefillFromNothingMatchesDouble) {
  const Sequence s({.n_heads = 6, .n_kv = 2, .dim = 48}, 150, 3);
  expect_full(s, 0, run_full(GetParam().run(), s, 0, {150}), GetParam().relative(s));
}

TEST_P(Attention, ContextsOfSeveralSpansMatchDouble) {
  for (const KvDtype dtype : kCodecs) {
    const Sequence s({.n_heads = 4, .n_kv = 1, .dim = 32, .k = dtype, .v = dtype}, 2090, 4);
    expect_full(s, 2087, run_full(GetParam().run(), s, 2087, {2090}), GetParam().relative(s));
  }
}

TEST_P(Attention, SplittingAtAnyPositionKeepsTheBits) {
  for (const KvDtype dtype : {KvDtype::kF32, KvDtype::kQ8_0}) {
    const Sequence s({.n_heads = 6, .n_kv = 2, .dim = 32, .k = dtype, .v = KvDtype::kBf16}, 140, 5);
    const Output whole = run_full(GetParam().run(), s, 0, {140});
    for (uint64_t cut = 1; cut < 140; ++cut) {
      expect_same_bits(run_full(GetParam().run(), s, 0, {cut, 140}), whole);
    }
  }
}

TEST_P(Attention, DecodingRowByRowGivesTheBitsOfPrefill) {
  const Sequence s({.n_heads = 8, .n_kv = 1, .dim = 64, .k = KvDtype::kBf16}, 1100, 6);
  const Output chunk = run_full(GetParam().run(2), s, 1020, {1100});
  std::vector<uint64_t> one_by_one;
  for (uint64_t i = 1021; i <= 1100; ++i) one_by_one.push_back(i);
  expect_same_bits(run_full(GetParam().run(), s, 1020, one_by_one), chunk);
}

TEST_P(Attention, TheNumberOfThreadsKeepsTheBits) {
  const Sequence s({.n_heads = 6, .n_kv = 3, .dim = 32, .k = KvDtype::kQ8_0}, 2300, 7);
  for (const uint64_t rows : {1u, 3u, 40u}) {
    const Output one = run_full(GetParam().run(1), s, 2300 - rows, {2300});
    for (const uint32_t threads : {2u, 3u, 4u}) {
      expect_same_bits(run_full(GetParam().run(threads), s, 2300 - rows, {2300}), one);
    }
  }
}

/// Latent attention: one KV head of 576 elements, whose rows are keys and values, for 20 heads.
Shape latent_shape(KvDtype dtype) {
  return {.n_heads = 20, .n_kv = 1, .dim = 576, .k = dtype, .v = dtype, .one_row = true};
}

TEST_P(Attention, RowsThatAreKeysAndValuesMatchDouble) {
  for (const KvDtype dtype : kCodecs) {
    const Sequence s(latent_shape(dtype), 150, 30);
    for (const uint64_t rows : {1u, 3u, 40u}) {
      for (const bool by_rows : {false, true}) {
        cpu::Run run = GetParam().run(4);
        if (by_rows && GetParam().exact) continue;
        run.by_rows = by_rows;
        const Output out = run_full(run, s, 150 - rows, {150});
        expect_full(s, 150 - rows, out, by_rows ? 0x1p-7 : GetParam().relative(s));
      }
    }
  }
}

TEST_P(Attention, SharesOfTheHeadsOfAKvHeadKeepTheBits) {
  for (const KvDtype dtype : kCodecs) {
    const Sequence s(latent_shape(dtype), 1100, 31);
    for (const uint64_t rows : {1u, 5u}) {
      const Output one = run_full(GetParam().run(1), s, 1100 - rows, {1100});
      for (const uint32_t threads : {2u, 3u, 4u})
        expect_same_bits(run_full(GetParam().run(threads), s, 1100 - rows, {1100}), one);
    }
  }
}

TEST_P(Attention, WindowsMatchDouble) {
  for (const uint32_t window : {1u, 2u, 31u, 63u, 64u, 65u, 100u, 300u}) {
    const Sequence s({.n_heads = 4, .n_kv = 2, .dim = 32, .v = KvDtype::kQ8_0}, 260, window);
    for (const uint32_t rewind : {0u, 9u}) {
      const Output out = run_windowed(GetParam().run(), s, window, rewind, 190, {230, 231, 260});
      for (uint64_t i = 0; i < out.size(); ++i) {
        const uint64_t p = 190 + i, from = p + 1 > window ? p + 1 - window : 0;
        expect_row(s, from, p, s.q[p], out[i], GetParam().relative(s));
      }
    }
  }
}

/// What a codec may change a value by, of a block whose largest element is `top`: half a step, or
/// for f32 what two bf16 leave over.
double rounding_of(KvDtype dtype, double value, double top) {
  switch (dtype) {
    case KvDtype::kF32:
      return 0x1p-16 * std::fabs(value);
    case KvDtype::kBf16:
      return 0x1p-9 * std::fabs(value);
    case KvDtype::kQ8_0:
      return top / 254;
    case KvDtype::kQ4:
      return top / 30;
    case KvDtype::kAuto:
      break;
  }
  return 0.0;
}

/// With one key the weight is 1, so the stored row of values comes back: within what its codec
/// rounds by, whichever kernel took it.
TEST_P(Attention, ASingleValueRowComesBack) {
  for (const bool by_rows : {false, true}) {
    auto run = GetParam().run();
    run.by_rows = by_rows;
    for (const uint32_t dim : {64u, 96u, 128u, 256u, 512u}) {
      for (const KvDtype dtype : kCodecs) {
        for (const uint32_t group : {1u, 4u, 9u}) {
          const Sequence s({.n_heads = 2 * group, .n_kv = 2, .dim = dim, .k = dtype, .v = dtype}, 1,
                           dim + group);
          const std::vector<float> got = run_full(run, s, 0, {1})[0], &row = s.v_row(0).back;
          for (size_t i = 0; i < got.size(); ++i) {
            const size_t at = i / dim / group * dim + i % dim, block = at / 32 * 32;
            double top = 0;
            for (size_t j = block; j < block + 32; ++j)
              top = std::max(top, double{std::fabs(row[j])});
            ASSERT_NEAR(got[i], row[at], rounding_of(dtype, row[at], top) + 0x1p-22)
                << "codec " << kv_dtype_name(dtype) << ", dim " << dim << ", element " << i;
          }
        }
      }
    }
  }
}

TEST_P(Attention, SinksTakeTheirShareOfEveryRow) {
  for (const KvDtype dtype : kCodecs) {
    for (const float low : {-2.0f, 3.0f}) {
      Sequence s({.n_heads = 4, .n_kv = 2, .dim = 64, .k = dtype, .v = dtype}, 1210, 41);
      s.sinks = {low, low + 1, low + 40, -1000.0f};
      const double relative = GetParam().relative(s);
      // Rows alone and a chunk, over two spans.
      expect_full(s, 1180, run_full(GetParam().run(2), s, 1180, {1181, 1182, 1210}), relative);
      const Output out = run_windowed(GetParam().run(), s, 24, 8, 100, {101, 130});
      for (uint64_t i = 0; i < out.size(); ++i)
        expect_row(s, 100 + i - 23, 100 + i, s.q[100 + i], out[i], relative);
    }
  }
}

TEST_P(Attention, AWindowOfOneReturnsTheRowsOwnValue) {
  const Sequence s({.n_heads = 2, .n_kv = 2, .dim = 32}, 90, 8);
  const Output out = run_windowed(GetParam().run(), s, 1, 3, 0, {50, 51, 90});
  for (uint64_t i = 0; i < out.size(); ++i) {
    for (size_t j = 0; j < out[i].size(); ++j) {
      ASSERT_NEAR(out[i][j], s.v[i][j], std::fabs(s.v[i][j]) * (GetParam().relative(s) + kUlp));
    }
  }
}

TEST_P(Attention, WindowedSplitsAtAnyPositionKeepTheBits) {
  const Sequence s({.n_heads = 4, .n_kv = 2, .dim = 32, .k = KvDtype::kBf16}, 150, 9);
  const Output whole = run_windowed(GetParam().run(), s, 40, 5, 0, {150});
  for (uint64_t cut = 1; cut < 150; ++cut) {
    expect_same_bits(run_windowed(GetParam().run(), s, 40, 5, 0, {cut, 150}), whole);
  }
}

TEST_P(Attention, WindowedDecodeGivesTheBitsOfPrefill) {
  const Sequence s({.n_heads = 4, .n_kv = 2, .dim = 64}, 1300, 10);
  const Output chunk = run_windowed(GetParam().run(), s, 1030, 64, 1100, {1300});
  std::vector<uint64_t> one_by_one;
  for (uint64_t i = 1101; i <= 1300; ++i) one_by_one.push_back(i);
  expect_same_bits(run_windowed(GetParam().run(2), s, 1030, 64, 1100, one_by_one), chunk);
}

TEST_P(Attention, BatchMatesDoNotChangeARowsBits) {
  const Shape shape{.n_heads = 6, .n_kv = 2, .dim = 32, .k = KvDtype::kQ8_0, .v = KvDtype::kQ8_0};
  const uint64_t lengths[] = {1, 64, 65, 700, 1025, 2100, 3, 90};
  std::vector<Sequence> sequences;
  std::vector<Store> stores;
  std::vector<Rows> rows;
  Output alone;
  for (const uint64_t n : lengths) {
    sequences.emplace_back(shape, n, static_cast<uint32_t>(n));
    alone.push_back(run_full(GetParam().run(), sequences.back(), n - 1, {n})[0]);
  }
  std::vector<AttentionTask> tasks;
  for (const Sequence& s : sequences) {
    const uint64_t n = s.q.size();
    stores.emplace_back(shape, n);
    for (uint64_t i = 0; i < n; ++i) stores.back().put(i, s, i);
    rows.emplace_back(s, n - 1, 1);
  }
  for (size_t i = 0; i < sequences.size(); ++i) {
    AttentionTask t = task_of(sequences[i], rows[i], 1);
    t.kv = stores[i].view();
    t.n_past = lengths[i] - 1;
    tasks.push_back(t);
  }
  ASSERT_TRUE(call(GetParam().run(2), tasks).is_ok());
  Output together;
  for (const Rows& r : rows) together.push_back(r.row(0, shape));
  expect_same_bits(together, alone);
}

TEST_P(Attention, PrefillOfSeveralSequencesGivesEachItsOwnBits) {
  const Shape shape{.n_heads = 4, .n_kv = 2, .dim = 32};
  const Sequence a(shape, 70, 11), b(shape, 45, 12);
  const Output alone_a = run_full(GetParam().run(), a, 0, {70}),
               alone_b = run_full(GetParam().run(), b, 5, {45});
  Store sa(shape, 70), sb(shape, 45);
  for (uint64_t i = 0; i < 70; ++i) sa.put(i, a, i);
  for (uint64_t i = 0; i < 45; ++i) sb.put(i, b, i);
  Rows ra(a, 0, 70), rb(b, 5, 40);
  AttentionTask tasks[2] = {task_of(a, ra, 70), task_of(b, rb, 40)};
  tasks[0].kv = sa.view();
  tasks[1].kv = sb.view();
  tasks[1].n_past = 5;
  ASSERT_TRUE(call(GetParam().run(2), tasks).is_ok());
  Output got_a, got_b;
  for (uint64_t i = 0; i < 70; ++i) got_a.push_back(ra.row(i, shape));
  for (uint64_t i = 0; i < 40; ++i) got_b.push_back(rb.row(i, shape));
  expect_same_bits(got_a, alone_a);
  expect_same_bits(got_b, alone_b);
}

TEST_P(Attention, ScoresOfThousandsPickTheirKeyWithoutOverflow) {
  Sequence s({.n_heads = 2, .n_kv = 1, .dim = 32}, 1200, 13);
  s.scale = 1.0f;
  const uint64_t hit = 333;
  for (auto& k : s.k) std::fill(k.begin(), k.end(), -100.0f);
  std::fill(s.k[hit].begin(), s.k[hit].end(), 100.0f);
  std::fill(s.q[1199].begin(), s.q[1199].end(), 100.0f);
  const Output out = run_full(GetParam().run(), s, 1199, {1200});
  for (size_t i = 0; i < 64; ++i) {
    const float want = s.v[hit][i % 32];
    ASSERT_NEAR(out[0][i], want, std::fabs(want) * GetParam().relative(s));
  }
}

TEST_P(Attention, AnInfiniteLaterRowDoesNotReachEarlierOnes) {
  Sequence s({.n_heads = 4, .n_kv = 2, .dim = 32}, 80, 14);
  const Output clean = run_full(GetParam().run(), s, 0, {80});
  std::fill(s.k[79].begin(), s.k[79].end(), INFINITY);
  std::fill(s.v[79].begin(), s.v[79].end(), INFINITY);
  const Output out = run_full(GetParam().run(), s, 0, {80});
  expect_same_bits({out.begin(), out.end() - 1}, {clean.begin(), clean.end() - 1});
}

TEST_P(Attention, ARowAloneMatchesDouble) {
  auto run = GetParam().run(2);
  run.by_rows = true;
  for (const uint32_t dim : {64u, 128u, 256u, 512u, 96u}) {
    for (const KvDtype dtype : kCodecs) {
      for (const uint32_t group : {1u, 2u, 3u, 4u, 6u, 8u, 9u}) {
        Shape shape{.n_heads = 2 * group, .n_kv = 2, .dim = dim, .k = dtype, .v = dtype};
        const Sequence s(shape, 130, dim + group);
        for (const uint64_t n : {0u, 1u, 6u, 63u, 64u, 129u}) {
          expect_full(s, n, run_full(run, s, n, {n + 1}), 2 * GetParam().relative(s));
        }
      }
    }
  }
}

TEST_P(Attention, ARowAloneOfTwoCodecsMatchesDouble) {
  auto run = GetParam().run(2);
  run.by_rows = true;
  for (const KvDtype k : kCodecs) {
    for (const KvDtype v : kCodecs) {
      const Sequence s({.n_heads = 6, .n_kv = 2, .dim = 128, .k = k, .v = v}, 130, 17);
      for (const uint64_t n : {5u, 63u, 129u}) {
        expect_full(s, n, run_full(run, s, n, {n + 1}), 2 * GetParam().relative(s));
      }
    }
  }
}

TEST_P(Attention, RowsAloneInSeveralSpansAndInWindowsMatchDouble) {
  auto run = GetParam().run();
  run.by_rows = true;
  for (const KvDtype dtype : kCodecs) {
    const Sequence s({.n_heads = 8, .n_kv = 2, .dim = 128, .k = dtype, .v = dtype}, 2090, 14);
    const Output one = run_full(run, s, 2087, {2088});
    expect_full(s, 2087, one, 2 * GetParam().relative(s));
    run.n_threads = 3;
    expect_same_bits(run_full(run, s, 2087, {2088}), one);
    run.n_threads = 1;
    const Output windowed = run_windowed(run, s, 77, 3, 150, {151, 152, 153});
    for (uint64_t i = 0; i < windowed.size(); ++i) {
      expect_row(s, 150 + i - 76, 150 + i, s.q[150 + i], windowed[i], 2 * GetParam().relative(s));
    }
  }
}

/// Every seventh row of a chunk.
TEST_P(Attention, AChunkMatchesDouble) {
  auto run = GetParam().run(2);
  run.by_rows = true;
  for (const uint32_t dim : {16u, 24u, 64u, 96u, 128u, 512u}) {
    for (const KvDtype dtype : kCodecs) {
      if (kv_rotation(dtype, dim) == 8) continue;
      for (const uint32_t group : {1u, 3u, 4u}) {
        const Sequence s({.n_heads = 4 * group, .n_kv = 4, .dim = dim, .k = dtype, .v = dtype}, 100,
                         dim + group);
        const Output out = run_full(run, s, 77, {99});  // the last row is checked
        for (uint64_t i = 0; i < out.size(); i += 7)
          expect_row(s, 0, 77 + i, s.q[77 + i], out[i], 2 * GetParam().relative(s));
      }
    }
  }
}

TEST_P(Attention, AChunkOfTwoCodecsInSeveralSpansAndInWindowsMatchesDouble) {
  auto run = GetParam().run(2);
  run.by_rows = true;
  for (const KvDtype k : kCodecs) {
    for (const KvDtype v : kCodecs) {
      const Sequence s({.n_heads = 6, .n_kv = 2, .dim = 64, .k = k, .v = v}, 1100, 17);
      const Output out = run_full(run, s, 1070, {1099}),
                   windowed = run_windowed(run, s, 77, 40, 150, {170, 205});
      for (uint64_t i = 0; i < out.size(); i += 7)
        expect_row(s, 0, 1070 + i, s.q[1070 + i], out[i], 2 * GetParam().relative(s));
      for (uint64_t i = 0; i < windowed.size(); i += 7)
        expect_row(s, 74 + i, 150 + i, s.q[150 + i], windowed[i], 2 * GetParam().relative(s));
    }
  }
}

/// Chunks of one row and of many have kernels of their own; among the many a row has the same bits.
TEST_P(Attention, ARowOfAChunkDoesNotDependOnTheChunk) {
  for (const KvDtype dtype : kCodecs) {
    const Sequence s({.n_heads = 6, .n_kv = 2, .dim = 96, .k = dtype, .v = dtype}, 1150, 19);
    auto run = GetParam().run();
    run.by_rows = true;
    const Output one = run_full(run, s, 1000, {1150});
    expect_same_bits(run_full(run, s, 1000, {1016, 1033, 1100, 1150}), one);
    run.n_threads = 3;
    expect_same_bits(run_full(run, s, 1000, {1060, 1150}), one);
  }
}

/// Chunks have the usual bits but where they have kernels of their own and a row may depend on its
/// chunk (never in deterministic arithmetic).
TEST(AttentionChunks, HaveBitsOfTheirOwnWhereARowMayDependOnItsChunk) {
  for (const Isa isa : runnable_isas()) {
    const AttentionKernels& kernels = kernels_of(isa).attention;
    if (&kernels.narrow.table != &kernels.exact.table) continue;  // never the usual bits
    SCOPED_TRACE(isa_name(isa));
    for (const KvDtype dtype : {KvDtype::kF32, KvDtype::kBf16}) {
      const Sequence s({.n_heads = 4, .n_kv = 2, .dim = 64, .k = dtype, .v = dtype}, 60, 21);
      const auto exact = Path{isa, true}.run();
      auto fast = Path{isa, false}.run();
      const Output want = run_full(exact, s, 20, {60});
      expect_same_bits(run_full(fast, s, 20, {60}), want);
      fast.by_rows = true;
      const Output got = run_full(fast, s, 20, {60});
      const bool same = std::memcmp(got[0].data(), want[0].data(), got[0].size() * 4) == 0;
      const auto& chunk = dtype == KvDtype::kF32 ? kernels.wide_chunk : kernels.chunk;
      EXPECT_EQ(same, &chunk.table == &kernels.exact.table);
    }
  }
}

TEST_P(Attention, AnInfiniteLaterRowDoesNotReachEarlierOnesOfAChunk) {
  for (const KvDtype dtype : {KvDtype::kF32, KvDtype::kBf16}) {
    Sequence s({.n_heads = 4, .n_kv = 2, .dim = 32, .k = dtype, .v = dtype}, 80, 14);
    auto run = GetParam().run();
    run.by_rows = true;
    const Output clean = run_full(run, s, 0, {80});
    std::fill(s.k[79].begin(), s.k[79].end(), INFINITY);
    std::fill(s.v[79].begin(), s.v[79].end(), INFINITY);
    const Output out = run_full(run, s, 0, {80});
    expect_same_bits({out.begin(), out.end() - 1}, {clean.begin(), clean.end() - 1});
  }
}

TEST_P(Attention, UnknownCodecsAreInternalErrors) {
  const Sequence s({.n_heads = 2, .n_kv = 1, .dim = 32}, 4, 15);
  Store store(s.shape, 4);
  for (const KvDtype bad :
       {KvDtype::kAuto, static_cast<KvDtype>(kKvCodecs + 1), static_cast<KvDtype>(200)}) {
    for (const bool on_k : {true, false}) {
      Rows rows(s, 3, 1);
      AttentionTask t = task_of(s, rows, 1);
      t.kv = store.view();
      (on_k ? t.kv.k_dtype : t.kv.v_dtype) = bad;
      t.n_past = 3;
      EXPECT_EQ(call(GetParam().run(), {&t, 1}).code(), Code::kInternal);
      for (const float o : rows.o) ASSERT_EQ(o, 77.0f);
    }
  }
}

TEST_P(Attention, TooLittleScratchIsAnErrorNotAnOverrun) {
  const Sequence s({.n_heads = 2, .n_kv = 1, .dim = 32}, 40, 16);
  Store store(s.shape, 40);
  Rows rows(s, 0, 40);
  AttentionTask t = task_of(s, rows, 40);
  t.kv = store.view();
  std::vector<std::byte> scratch(256);
  EXPECT_EQ(attention(pool_of(1), kernels_of(GetParam().isa), GetParam().exact, {&t, 1},
                      scratch.data(), 256)
                .code(),
            Code::kInternal);
}

TEST_P(Attention, NoRowsIsNoWork) {
  const AttentionTask t;
  EXPECT_TRUE(
      attention(pool_of(1), kernels_of(GetParam().isa), GetParam().exact, {&t, 1}, nullptr, 0)
          .is_ok());
}

}  // namespace
}  // namespace sharpi::cpu
