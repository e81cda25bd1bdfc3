/* SPDX-License-Identifier: MIT */
/* Compiled by strict C and C++ compilers: the header needs nothing before it, may come twice, and
 * its constants are usable where the language wants constant expressions. */
#include "sharpi.h"

#if SHARPI_VERSION < 10000
#error "SHARPI_VERSION is not usable in the preprocessor"
#endif

typedef char status_is_four_bytes[sizeof(sharpi_status) == 4 ? 1 : -1];

int32_t header_alone(sharpi_status status, sharpi_kv_dtype dtype);

int32_t header_alone(sharpi_status status, sharpi_kv_dtype dtype) {
  sharpi_error error = SHARPI_ERROR_INIT;
  sharpi_context_params params;
  sharpi_text_stream stream = {0, {0, 0, 0, 0}};
  sharpi_context_params_init(&params, sizeof params);
  switch (status) {
    case SHARPI_OK:
    case SHARPI_E_KV_FULL:
      break;
    default:
      error.status = status;
      break;
  }
  switch (dtype) {
    case SHARPI_KV_AUTO:
    case SHARPI_KV_Q8_0:
    case SHARPI_KV_Q4:
      return error.status;
    default:
      return stream.n_held == 0 ? 0 : 1;
  }
}
