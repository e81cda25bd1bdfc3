# Kernels of x86-64: sources, and the flags of each instruction set. Only what is named for a set is
# compiled with its flags, runs only where resolve_isa() allowed the set, and shares no inline code
# with other files (tests/abi/vector_objects.sh).
# What the compiler defines for such a processor, and what files are named by that are compiled for a set.
set(processor_macro __x86_64__)
set(isa_names avx2 avx512 amx)
set(processor_sources x86/isa_x86.cc x86/kernel_set_x86.cc)

# GCC 12 takes the undefined pass-through operands inside its own intrinsics for uninitialised
# variables (GCC bug 105593).
set(quiet_flags $<$<CXX_COMPILER_ID:GNU>:-Wno-uninitialized> $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
set(avx2_flags -mavx2 -mfma -mf16c ${quiet_flags})
set(avx512_flags ${avx2_flags} -mavx512f -mavx512bw -mavx512dq -mavx512vl)
set(avx512_vnni_flags ${avx512_flags} -mavx512vnni)

# x86_kernels(<flags> <source>...): sources of this folder that are compiled with more flags.
function(x86_kernels flags)
  list(TRANSFORM ARGN PREPEND x86/)
  set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS "${flags}")
  set(processor_sources ${processor_sources} ${ARGN} PARENT_SCOPE)
endfunction()

# Products.
x86_kernels("${avx2_flags}" matmul_avx2.cc matmul_avx2_f32.cc matmul_avx2_panel.cc)
x86_kernels("${avx512_vnni_flags}"
  matmul_avx512.cc matmul_avx512_f32.cc matmul_avx512_panel.cc quantize_avx512.cc)
x86_kernels("${avx512_vnni_flags};-mavx512bf16;-mamx-tile;-mamx-bf16" matmul_amx.cc)
# Row operations, attention and recurrences, without contraction.
x86_kernels("-ffp-contract=off;${avx2_flags}" attention_avx2.cc attention_chunk_avx2.cc
  delta_net_avx2.cc mamba2_avx2.cc ops_avx2.cc)
x86_kernels("-ffp-contract=off;${avx512_flags}" attention_avx512.cc delta_net_avx512.cc mamba2_avx512.cc
  ops_avx512.cc)
x86_kernels("-ffp-contract=off;${avx512_flags};-mavx512bf16" attention_bf16_avx512.cc)
x86_kernels("-ffp-contract=off;${avx512_flags};-mavx512bf16;-mamx-tile;-mamx-bf16" attention_amx.cc)
x86_kernels("-ffp-contract=off;${avx512_flags};-mavx512vnni;-mamx-tile;-mamx-int8" attention_q8_amx.cc)
