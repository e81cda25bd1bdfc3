// SPDX-License-Identifier: MIT
//! Prints what sharpi-sys assumes of the ABI, in the form of header_facts.sh. Does not compile
//! unless its handles may go to other threads, and those that calls may share may be shared.
#[path = "../../bindings/rust/sharpi-sys/src/lib.rs"]
mod sharpi;

fn goes_to_threads<T: Send>() {}
fn is_shared_by_threads<T: Sync>() {}

fn main() {
    goes_to_threads::<sharpi::Handle<sharpi::sharpi_context>>();
    goes_to_threads::<sharpi::Handle<sharpi::sharpi_session>>();
    goes_to_threads::<sharpi::Library>();
    is_shared_by_threads::<sharpi::Handle<sharpi::sharpi_plan>>();
    is_shared_by_threads::<sharpi::Handle<sharpi::sharpi_model>>();
    is_shared_by_threads::<sharpi::Library>();
    sharpi::layout();
}
