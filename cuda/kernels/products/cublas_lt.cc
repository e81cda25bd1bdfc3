// SPDX-License-Identifier: MIT
#include "cuda/kernels/products/cublas_lt.h"

#include <cublasLt.h>

#include <map>
#include <mutex>
#include <tuple>
#include <utility>

#include "os/dynamic_library.h"

namespace sharpi::cuda {
namespace {

/// Rows, columns, outputs, stride and alignment of y.
using ShapeKey = std::tuple<uint32_t, uint32_t, uint32_t, uint64_t, uint32_t>;

uint32_t alignment(const void* p) {
  const auto at = reinterpret_cast<uintptr_t>(p) | 256u;
  return static_cast<uint32_t>(at & (~at + 1));
}

Status cublas_status(cublasStatus_t s, const char* what) {
  if (s == CUBLAS_STATUS_SUCCESS) return Status::ok();
  return Status::native_error(Code::kDevice, static_cast<int32_t>(s),
                              "cuBLASLt failed at %s with status %d", what, static_cast<int>(s));
}

/// The library's functions, and a handle for every context that a device was opened in. Both stay
/// until the process ends: to destroy a handle waits for the whole device, and ends what another
/// thread of the host captures on it.
struct Library {
  os::DynamicLibrary file;
  bool found = false;
  std::map<uint64_t, cublasLtHandle_t> handles;

  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtGetVersion) get_version = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulDescCreate) desc_create = nullptr;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;

  /// Once it was found, it is not looked for again.
  Status find() {
    if (found) return Status::ok();
    const auto file_of = [](const char* v) { return os::library_file("cublasLt", v); };
    if (!file.open({file_of("13"), file_of("12"), file_of("")})) {
      return Status::error(Code::kNotFound, "there is no %s, no %s and no %s, so own kernels run",
                           file_of("13").c_str(), file_of("12").c_str(), file_of("").c_str());
    }
    const auto get = [this](auto* to, const char* name) {
      *reinterpret_cast<void**>(to) = file.symbol(name);
      return *to != nullptr;
    };
    found = get(&create, "cublasLtCreate") && get(&get_version, "cublasLtGetVersion") &&
            get(&matmul, "cublasLtMatmul") && get(&desc_create, "cublasLtMatmulDescCreate") &&
            get(&desc_destroy, "cublasLtMatmulDescDestroy") &&
            get(&desc_set, "cublasLtMatmulDescSetAttribute") &&
            get(&layout_create, "cublasLtMatrixLayoutCreate") &&
            get(&layout_destroy, "cublasLtMatrixLayoutDestroy") &&
            get(&preference_create, "cublasLtMatmulPreferenceCreate") &&
            get(&preference_destroy, "cublasLtMatmulPreferenceDestroy") &&
            get(&preference_set, "cublasLtMatmulPreferenceSetAttribute") &&
            get(&heuristic, "cublasLtMatmulAlgoGetHeuristic");
    if (found) return Status::ok();
    return Status::error(Code::kNotFound, "%s lacks functions, so own kernels run",
                         file.name().c_str());
  }
  /// The handle of the current context, which has this number.
  Result<cublasLtHandle_t> handle_of(uint64_t context) {
    const auto at = handles.find(context);
    if (at != handles.end()) return at->second;
    cublasLtHandle_t made = nullptr;
    SHARPI_TRY(cublas_status(create(&made), "handle"));
    handles.emplace(context, made);
    return made;
  }
};

}  // namespace

struct CublasLt::Impl {
  /// What a shape needs: descriptors and the algorithm.
  struct Plan {
    cublasLtMatmulDesc_t desc = nullptr;
    cublasLtMatrixLayout_t w = nullptr, x = nullptr, y = nullptr;
    cublasLtMatmulAlgo_t algo = {};
  };

  const Library& lib;
  cublasLtHandle_t handle = nullptr;
  std::mutex mutex;
  std::map<ShapeKey, Plan> plans;

  Impl(const Library& library, cublasLtHandle_t of_context) : lib(library), handle(of_context) {}
  ~Impl() {
    for (auto& [key, plan] : plans) release(plan);
  }
  void release(const Plan& plan) const {
    if (plan.desc != nullptr) lib.desc_destroy(plan.desc);
    for (const auto layout : {plan.w, plan.x, plan.y}) {
      if (layout != nullptr) lib.layout_destroy(layout);
    }
  }

  /// Column-major in the library's words: y^T (n_out x n_rows) = W (transposed) * x^T.
  Status fill(Plan* plan, const CublasProduct& p) const {
    SHARPI_TRY(
        cublas_status(lib.desc_create(&plan->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), "descriptor"));
    const cublasOperation_t transposed = CUBLAS_OP_T;
    const cublasLtPointerMode_t mode = CUBLASLT_POINTER_MODE_DEVICE;
    SHARPI_TRY(cublas_status(
        lib.desc_set(plan->desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed),
        "transposition"));
    SHARPI_TRY(cublas_status(
        lib.desc_set(plan->desc, CUBLASLT_MATMUL_DESC_POINTER_MODE, &mode, sizeof mode),
        "pointer mode"));
    const auto n_in = static_cast<int64_t>(p.n_in), ldy = static_cast<int64_t>(p.y_stride);
    SHARPI_TRY(cublas_status(lib.layout_create(&plan->w, CUDA_R_16F, p.n_in, p.n_out, n_in), "W"));
    SHARPI_TRY(cublas_status(lib.layout_create(&plan->x, CUDA_R_16F, p.n_in, p.n_rows, n_in), "x"));
    SHARPI_TRY(cublas_status(lib.layout_create(&plan->y, CUDA_R_32F, p.n_out, p.n_rows, ldy), "y"));
    cublasLtMatmulPreference_t preference = nullptr;
    SHARPI_TRY(cublas_status(lib.preference_create(&preference), "preference"));
    const uint64_t bytes = kCublasWorkspaceBytes;
    cublasStatus_t status = lib.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                               &bytes, sizeof bytes);
    const uint32_t align = alignment(p.y);
    for (const auto what :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      if (status == CUBLAS_STATUS_SUCCESS)
        status = lib.preference_set(preference, what, &align, sizeof align);
    }
    cublasLtMatmulHeuristicResult_t result = {};
    int found = 0;
    if (status == CUBLAS_STATUS_SUCCESS) {
      status = lib.heuristic(handle, plan->desc, plan->w, plan->x, plan->y, plan->y, preference, 1,
                             &result, &found);
    }
    lib.preference_destroy(preference);
    SHARPI_TRY(cublas_status(status, "heuristic"));
    if (found == 0) return cublas_status(CUBLAS_STATUS_NOT_SUPPORTED, "heuristic");
    plan->algo = result.algo;
    return Status::ok();
  }
};

CublasLt::CublasLt(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CublasLt::~CublasLt() = default;

Result<std::unique_ptr<CublasLt>> CublasLt::open(uint64_t context) {
  static std::mutex opening;
  static auto* const library = new Library;
  const std::lock_guard<std::mutex> lock(opening);
  SHARPI_TRY(library->find());
  SHARPI_TRY_ASSIGN(const cublasLtHandle_t handle, library->handle_of(context));
  std::unique_ptr<CublasLt> result(new CublasLt(std::make_unique<Impl>(*library, handle)));
  result->text_ = library->file.name() + " " + std::to_string(library->get_version());
  return result;
}

Status CublasLt::run(const CublasProduct& p, cudaStream_t stream) {
  const ShapeKey key = {p.n_rows, p.n_in, p.n_out, p.y_stride, alignment(p.y)};
  const Impl::Plan* plan = nullptr;
  {
    const std::lock_guard<std::mutex> lock(impl_->mutex);
    auto at = impl_->plans.find(key);
    if (at == impl_->plans.end()) {
      Impl::Plan made;
      if (Status s = impl_->fill(&made, p); !s.is_ok()) {
        impl_->release(made);
        return s;
      }
      at = impl_->plans.emplace(key, made).first;
    }
    plan = &at->second;
  }
  return cublas_status(impl_->lib.matmul(impl_->handle, plan->desc, p.alpha, p.w, plan->w, p.x,
                                         plan->x, p.beta, p.y, plan->y, p.y, plan->y, &plan->algo,
                                         p.workspace, kCublasWorkspaceBytes, stream),
                       "product");
}

}  // namespace sharpi::cuda
