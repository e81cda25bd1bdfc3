// SPDX-License-Identifier: MIT
#include "cpu/pass.h"

namespace sharpi::cpu {

MatmulInput Pass::input(Buf rows_of, uint64_t width, uint32_t n_rows, Buf prepared) const {
  MatmulInput in;
  in.x = ws.get(rows_of);
  in.stride = width;
  in.n_rows = n_rows;
  in.n_in = width;
  in.prepared = ws.get<std::byte>(prepared);
  matmul().prepare(in);
  return in;
}

void Pass::product(const TensorRef& w, const MatmulInput& in, float* y, uint64_t y_stride,
                   bool force_f32) const {
  const MatmulTask t = matmul_task(w, in, y, y_stride, force_f32);
  matmul().run({&t, 1});
}

MatmulTask matmul_task(const TensorRef& w, const MatmulInput& in, float* y, uint64_t y_stride,
                       bool force_f32) {
  MatmulTask t;
  t.w.type = w.tensor->type;
  t.w.data = w.tensor->data;
  t.w.n_in = w.n_in;
  t.w.n_out = w.n_out;
  t.w.row_bytes = w.row_bytes();
  t.in = &in;
  t.n_rows = in.n_rows;
  t.y = y;
  t.y_stride = y_stride;
  t.force_f32 = force_f32;
  return t;
}

}  // namespace sharpi::cpu
