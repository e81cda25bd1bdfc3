#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_control_flow_attributes : require
#pragma use_vulkan_memory_model
#include "../common.glsl"
#include "../weights.glsl"
#include "../dots.glsl"
// The products of shaders/expert_tile.comp.
layout(constant_id = 1) const int TYPE = 12;
layout(constant_id = 2) const int TYPE_UP = 12;  // TYPE
// The device's matrices: M outputs, N rows, K elements at a time.
layout(constant_id = 4) const uint M = 16;
layout(constant_id = 5) const uint N = 16;
layout(constant_id = 6) const uint K = 16;
#include "../expert_rows.glsl"
#define ROW_MATRICES 2
#include "product_matrix.glsl"
