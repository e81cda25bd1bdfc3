# Writes the files of a folder as arrays: cmake -DOUT=page_files.cc -DFOLDER=... -P embed.cmake
file(GLOB files RELATIVE "${FOLDER}" "${FOLDER}/*")
list(SORT files)
set(arrays "")
set(rows "")
set(index 0)
foreach(name IN LISTS files)
  if(IS_DIRECTORY "${FOLDER}/${name}")
    continue()
  endif()
  file(READ "${FOLDER}/${name}" hex HEX)
  string(LENGTH "${hex}" size)
  math(EXPR size "${size} / 2")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
  string(APPEND arrays "const unsigned char kFile${index}[] = {${bytes}0};\n")
  string(APPEND rows "    {\"${name}\", kFile${index}, ${size}},\n")
  math(EXPR index "${index} + 1")
endforeach()
file(WRITE "${OUT}"
"// Made from the folder page/.
#include \"page.h\"
namespace server {
namespace {
${arrays}const PageFile kFiles[] = {
${rows}};
}  // namespace
std::span<const PageFile> page_files() { return kFiles; }
}  // namespace server
")
