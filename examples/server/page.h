// SPDX-License-Identifier: MIT
// The files of the folder page/, as bytes of the program.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace server {

struct PageFile {
  const char* name;
  const unsigned char* data;
  size_t size;
};

std::span<const PageFile> page_files();
/// By the ending of the name.
const char* content_type(const std::string& name);

}  // namespace server
