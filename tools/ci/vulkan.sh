#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The Vulkan tier compiles with warnings as errors, its shaders are valid, the module exports its table alone, and on
# a device of this machine (lavapipe will do) models give their goldens without a message of the validation layers.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

if ! command -v glslc > /dev/null || ! echo '#include <vulkan/vulkan.h>' | "${CC:-cc}" -E - > /dev/null 2>&1; then
  echo "skipped: no vulkan/vulkan.h or no glslc (Debian: libvulkan-dev glslc)"
  exit "$kSkipped"
fi
# Into the folder of `make test`, whose library and tests are compiled already.
configure_tested -DSHARPI_VULKAN=ON
build build vulkan_test sharpi
ctest --test-dir build --output-on-failure -R '^modules\.vulkan' | tail -n 3
if command -v spirv-val > /dev/null; then
  for shader in vulkan/shaders/*.comp; do
    glslc --target-env=vulkan1.2 -O "$shader" -o - | spirv-val --target-env vulkan1.2 -
  done
fi
# What glslc of Debian 12 cannot compile is committed as words.
if command -v "${GLSLANG:-glslang}" > /dev/null && command -v "${SPIRV_OPT:-spirv-opt}" > /dev/null; then
  tools/make_shaders.sh --check
else
  echo "skipped: shaders of vulkan/shaders/newer are not compiled anew (no glslang and spirv-opt)"
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
layer=VK_LAYER_KHRONOS_validation
run() {  # seconds, cases
  local status=0
  VK_INSTANCE_LAYERS=$validation timeout --kill-after=5 "$1" build/tests/vulkan/vulkan_test --gtest_brief=1 \
    --gtest_filter="$2" > "$log" 2>&1 || status=$?
  cat "$log"
  if ((status == 124 || status == 137)); then
    echo "cut off after $1 s: what ran until then was right"
    status=0
  fi
  ((status == 0 || status == kSkipped)) || return "$status"
  if grep -qE 'VUID|Validation (Error|Warning)' "$log"; then
    echo "the validation layers have something to say"
    return 1
  fi
  return "$status"
}
validation=$layer
if [[ ! -e /usr/share/vulkan/explicit_layer.d/VkLayer_khronos_validation.json ]]; then
  echo "without the validation layers (Debian: vulkan-validationlayers)"
  validation=
fi
# A model of each kind, and each way of the smallest one.
run 150 'VulkanDevices*:VulkanPipelines*:VulkanProfiles*:*VulkanShares*/1_heads_of_32:*VulkanByHead.Saved*/heads_of_80:*VulkanFast.*/qwen3_0:VulkanLoader*:VulkanDrivers*:VulkanFaults*:*VulkanSeveral.*/qwen3_0:*VulkanClasses*/qwen3moe*:*OnVulkan*/qwen3:*OnVulkan*/gemma3:*OnVulkan*/qwen35:*OnVulkan*/qwen3moe:*VulkanReady*/qwen3_replay:*VulkanWays*/qwen3_0:*VulkanWays.*xperts*/qwen3moe*:*VulkanRecurrent.*nemotron*:Experts*VulkanFastWeights*q4_k:-*Recurrent.Long*:*EveryCodec*'

# A machine without a driver has no device, and says so.
without=$(VK_DRIVER_FILES=/nonexistent VK_ICD_FILENAMES=/nonexistent build/tests/vulkan/vulkan_test \
  --gtest_filter='VulkanDevices*' 2>&1 || true)
grep -q 'no Vulkan device' <<< "$without" || { echo "$without"; exit 1; }
