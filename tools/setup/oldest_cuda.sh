#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The oldest CUDA toolkit that the library promises to compile with, put together in a folder:
# oldest_cuda.sh FOLDER. The compiler is the one of Debian 13 (non-free), unpacked and not installed;
# headers come from the Python packages of that toolkit. There is no static runtime among them, so what
# is linked there uses the shared one: good for compiling, not for shipping. Ends with 77 where apt or
# pip cannot fetch them.
set -euo pipefail
folder=${1:?a folder for the toolkit}
version=12.4
readonly kSkipped=77
[[ -x $folder/bin/nvcc && -f $folder/complete ]] && exit 0

mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
skip() {
  echo "$1"
  exit "$kSkipped"
}
if ! command -v apt-get > /dev/null || ! command -v dpkg-deb > /dev/null; then
  skip "no apt on this machine"
fi

# Lists and packages of their own: nothing of this machine's is touched. The archive is this machine's.
# shellcheck disable=SC2016  # a field of apt's
site=$(apt-get indextargets --format '$(SITE)' 2> /dev/null | grep -E '/debian$' | sort -u | head -n 1 ||
  true)
[[ -n $site ]] || skip "this machine's packages are not Debian's"
mkdir -p "$scratch"/{state/lists/partial,cache/archives/partial,deb}
touch "$scratch/state/status"
cat > "$scratch/debian.sources" << EOF
Types: deb
URIs: $site
Suites: trixie
Components: non-free
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
EOF
options=(-o "Dir::State=$scratch/state" -o "Dir::State::status=$scratch/state/status"
  -o "Dir::Cache=$scratch/cache" -o "Dir::Etc::sourcelist=$scratch/debian.sources"
  -o Dir::Etc::sourceparts=/dev/null)
apt-get "${options[@]}" -qq update > "$scratch/log" 2>&1 || skip "apt-get update: $(tail -n 1 "$scratch/log")"
(cd "$scratch/deb" && apt-get "${options[@]}" -qq download nvidia-cuda-toolkit > "$scratch/log" 2>&1) ||
  skip "apt-get download: $(tail -n 1 "$scratch/log")"
dpkg-deb -x "$scratch"/deb/nvidia-cuda-toolkit_*.deb "$scratch/tree"

python3 -m pip download -q --no-deps --only-binary=:all: -d "$scratch/wheels" \
  nvidia-cuda-runtime-cu12==12.4.127 nvidia-cuda-nvcc-cu12==12.4.131 nvidia-cublas-cu12==12.4.5.8 \
  > "$scratch/log" 2>&1 || skip "pip download: $(tail -n 1 "$scratch/log")"
for wheel in "$scratch"/wheels/*.whl; do
  python3 -m zipfile -e "$wheel" "$scratch/packages"
done

rm -rf "${folder:?}"/{bin,include,lib64,nvvm,complete}
mkdir -p "$folder"/{bin,include,lib64,nvvm/bin,nvvm/libdevice}
tools=$scratch/tree/usr
own=$tools/lib/nvidia-cuda-toolkit
cp -r "$own"/bin/nvcc "$own"/bin/crt "$tools"/bin/{cudafe++,cuobjdump,nvlink,ptxas,fatbinary,bin2c} \
  "$folder/bin/"
cp "$own/bin/cicc" "$folder/nvvm/bin/"
cp "$own"/libdevice/* "$folder/nvvm/libdevice/"
for package in cuda_runtime cuda_nvcc cublas; do
  cp -rf "$scratch/packages/nvidia/$package/include/." "$folder/include/"
done
cp "$scratch"/packages/nvidia/cuda_runtime/lib/libcudart.so.12 "$folder/lib64/"
ln -sf libcudart.so.12 "$folder/lib64/libcudart.so"
# What the linker reads for the static runtime.
echo 'INPUT(libcudart.so.12)' > "$folder/lib64/libcudart_static.a"
ar rcs "$folder/lib64/libcudadevrt.a"
cat > "$folder/bin/nvcc.profile" << 'EOF'
TOP = $(_HERE_)/..
CICC_PATH = $(TOP)/nvvm/bin
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice
PATH += $(CICC_PATH):$(_HERE_):
INCLUDES += "-I$(TOP)/include" $(_SPACE_)
LIBRARIES =+ $(_SPACE_) "-L$(TOP)/lib64"
EOF
chmod +x "$folder"/bin/* "$folder/nvvm/bin/cicc"
"$folder/bin/nvcc" --version | grep -q "release $version" || { echo "not the compiler of $version"; exit 1; }
touch "$folder/complete"
