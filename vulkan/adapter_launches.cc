// SPDX-License-Identifier: MIT
// What adapters add to products: two kernels for each adapter that a sequence may have, of all
// matrices of the product.
#include "base/limits.h"
#include "model/adapter_file.h"
#include "vulkan/pass_launches.h"

namespace sharpi::vulkan {

static_assert(sizeof(device::AdapterEntry) == 24 && sizeof(device::BatchAdapter) == 16 &&
                  sizeof(device::BatchRow) == 16 && kMaxAdapters == 16,
              "shaders/adapters.glsl");
static_assert(device::kMaxProductTasks == 4, "shaders/adapter_first.comp and adapter_second.comp");

/// The product in front has left the rows that its norm made, if it has one, in kKernel.
Status PassLaunches::adapters() const {
  const device::RowLink& link = list_.links[l_.first_link];
  const RowProduct& p = link.product;
  const uint32_t rank = m_.plan->model.adapter_rank;
  const bool normed = floats(p.norm) != nullptr;
  const float* x = buf(normed ? Buf::kKernel : link.sum.adds ? link.sum.to : p.x);
  uint64_t groups = 0;
  for (uint32_t t = 0; t < p.n_tasks; ++t) groups += groups_of(p.tasks[t].w->n_out);
  for (uint32_t k = 0; k < p_.n_adapters; ++k) {
    Args first = Args().at(p_.batch.table.rows).at(ws_.adapters()).at(x).at(buf(Buf::kAdapter));
    Args second = Args()
                      .at(p_.batch.table.rows)
                      .at(ws_.adapters())
                      .at(buf(Buf::kAdapter))
                      .at(p.shared_scale ? buf(Buf::kSharedGate) : nullptr);
    first.u(p.tasks[0].w->n_in).u(k).u(rank);
    for (uint32_t t = 0; t < device::kMaxProductTasks; ++t)
      second.at(t < p.n_tasks ? buf(p.tasks[t].y) : nullptr);
    second.u(k).u(rank);
    for (uint32_t t = 0; t < device::kMaxProductTasks; ++t) {
      const uint32_t weight = t < p.n_tasks ? tensor_index(s_, *p.tasks[t].w) : 0;
      first.u(weight);
      second.u(weight);
    }
    for (uint32_t t = 0; t < device::kMaxProductTasks; ++t)
      second.u(t < p.n_tasks ? p.tasks[t].w->n_out : 0);
    const uint64_t units = uint64_t{p.n_tasks} * ((rank + 3) / 4);
    SHARPI_TRY(
        queue_.dispatch({Shader::adapter_first, {}, first, units, n(), profile().row_threads}));
    SHARPI_TRY(run(Shader::adapter_second, {}, second, groups, n()));
  }
  return Status::ok();
}

}  // namespace sharpi::vulkan
