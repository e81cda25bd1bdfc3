// SPDX-License-Identifier: MIT
//! Prints what sharpi.rs assumes of the ABI, in the form of header_facts.sh.
#[path = "../../examples/ffi/rust/sharpi.rs"]
mod sharpi;

fn main() {
    sharpi::layout();
}
