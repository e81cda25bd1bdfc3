// SPDX-License-Identifier: MIT
// What nearly every test includes and nobody changes while working on this tree. The build compiles
// it once (precompiled) and puts it before every test; each test still includes what it uses.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#define SHARPI_TEST_INSTANCE extern template
#include "support/instances.h"
