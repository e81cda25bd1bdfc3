// SPDX-License-Identifier: MIT
//! Tells the crate where its own copy of the library is, if it has one for the target:
//! native/TARGET/ of a published crate. Nothing is linked: the library is opened at run time.
use std::path::Path;

fn main() {
    println!("cargo:rerun-if-changed=native");
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let file = match variable("CARGO_CFG_TARGET_OS").as_str() {
        "windows" => "sharpi.dll",
        "macos" => "libsharpi.1.dylib",
        _ => "libsharpi.so.1",
    };
    let folder = Path::new(&variable("CARGO_MANIFEST_DIR")).join("native").join(variable("TARGET"));
    let library = folder.join(file);
    if library.exists() {
        println!("cargo:rustc-env=SHARPI_BUNDLED={}", library.display());
        println!("cargo:library={}", library.display()); // DEP_SHARPI_LIBRARY, for build scripts
    }
}
