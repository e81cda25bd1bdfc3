# Kernels of aarch64: sources, and the flags of each instruction set. NEON is part of the architecture;
# what is named for more runs only where resolve_isa() allowed its set, and shares no inline code with
# other files (tests/abi/vector_objects.sh). Nowhere contraction: sums are fused where they say so.
# What the compiler defines for such a processor, and what files are named by that are compiled for a set.
set(processor_macro __aarch64__)
set(isa_names neon)
set(processor_sources arm/isa_arm.cc arm/kernel_set_arm.cc)

# arm_kernels(<flags> <source>...): sources of this folder that are compiled with more flags.
function(arm_kernels flags)
  list(TRANSFORM ARGN PREPEND arm/)
  set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS "-ffp-contract=off;${flags}")
  set(processor_sources ${processor_sources} ${ARGN} PARENT_SCOPE)
endfunction()

arm_kernels("" matmul_neon.cc matmul_neon_f32.cc quantize_neon.cc
  attention_neon.cc delta_net_neon.cc mamba2_neon.cc ops_neon.cc)
arm_kernels(-march=armv8.2-a+dotprod matmul_neon_dot.cc)
arm_kernels(-march=armv8.2-a+dotprod+i8mm+bf16 matmul_neon_i8mm.cc matmul_neon_bf16.cc
  attention_neon_bf16.cc)
