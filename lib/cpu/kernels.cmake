# Row operations, attention and the delta net: sources and the flags of each instruction set.
set(kernel_sources
  attention.cc
  attention_scalar.cc
  attention_avx2.cc
  attention_avx512.cc
  attention_amx.cc
  attention_bf16.cc
  attention_q8.cc
  attention_select.cc
  delta_net.cc
  delta_net_scalar.cc
  delta_net_avx2.cc
  delta_net_avx512.cc
  ops.cc
  ops_scalar.cc
  ops_avx2.cc
  ops_avx512.cc
)

# Nothing but the kernels themselves may be compiled with an instruction set's flags. Contraction is
# off because a fused product in one instance of a kernel and not in another would make a row's bits
# depend on the block it was in. GCC 12 takes the undefined pass-through operand of its own AVX-512
# intrinsics for an uninitialised variable (GCC bug 105593).
set(kernel_avx2_flags -ffp-contract=off -mavx2 -mfma -mf16c)
set(kernel_avx512_flags ${kernel_avx2_flags} -mavx512f -mavx512bw -mavx512dq -mavx512vl
    $<$<CXX_COMPILER_ID:GNU>:-Wno-uninitialized>
    $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
set_source_files_properties(${kernel_sources} PROPERTIES COMPILE_OPTIONS -ffp-contract=off)
set_source_files_properties(
  attention_avx2.cc delta_net_avx2.cc ops_avx2.cc
  PROPERTIES COMPILE_OPTIONS "${kernel_avx2_flags}")
set_source_files_properties(
  attention_avx512.cc delta_net_avx512.cc ops_avx512.cc
  PROPERTIES COMPILE_OPTIONS "${kernel_avx512_flags}")
set_source_files_properties(
  attention_amx.cc
  PROPERTIES COMPILE_OPTIONS "${kernel_avx512_flags};-mavx512bf16;-mamx-tile;-mamx-bf16")
set_source_files_properties(
  attention_bf16.cc
  PROPERTIES COMPILE_OPTIONS "${kernel_avx512_flags};-mavx512bf16")
set_source_files_properties(
  attention_q8.cc
  PROPERTIES COMPILE_OPTIONS "${kernel_avx512_flags};-mavx512vnni;-mamx-tile;-mamx-int8")
