#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Does what `dotnet restore` and `dotnet build` do for a program Ask.exe of one package, where there is only the
# run-time: lays the package where packages lie, and says in Ask.deps.json what of it is used.
# restored.sh dotnet app-folder package-folder
set -euo pipefail
dotnet=$1 app=$2 package=$3
version=$("$dotnet" --list-runtimes | sed -nE 's/^Microsoft\.NETCore\.App ([0-9.]+).*/\1/p' | tail -n 1)
[[ -n $version ]] || { echo "$dotnet has no run-time"; exit 1; }
own=$(sed -nE 's|.*<version>(.*)</version>.*|\1|p' "$package/LibSharpi.nuspec")
mkdir -p "$app/packages/libsharpi"
cp -r "$package" "$app/packages/libsharpi/$own"
mv "$app/Ask.exe" "$app/Ask.dll"
framework=netcoreapp${version%.*}
cat > "$app/Ask.runtimeconfig.json" << EOF
{"runtimeOptions": {"tfm": "$framework", "framework": {"name": "Microsoft.NETCore.App", "version": "$version"}}}
EOF
natives=$(cd "$package" && find runtimes -type f | while IFS= read -r file; do
  rid=${file#runtimes/}
  printf '"%s": {"rid": "%s", "assetType": "native"},' "$file" "${rid%%/*}"
done)
cat > "$app/Ask.deps.json" << EOF
{"runtimeTarget": {"name": ".NETCoreApp,Version=v${version%.*}"},
 "targets": {".NETCoreApp,Version=v${version%.*}": {
   "Ask/1.0.0": {"dependencies": {"LibSharpi": "$own"}, "runtime": {"Ask.dll": {}}},
   "LibSharpi/$own": {"runtime": {"lib/netstandard2.0/LibSharpi.dll": {}}, "runtimeTargets": {${natives%,}}}}},
 "libraries": {"Ask/1.0.0": {"type": "project", "serviceable": false, "sha512": ""},
   "LibSharpi/$own": {"type": "package", "serviceable": true, "sha512": "", "path": "libsharpi/$own"}}}
EOF
