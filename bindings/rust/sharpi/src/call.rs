// SPDX-License-Identifier: MIT
//! How the library is found once and called.
use crate::sys;
use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::mem::{size_of, MaybeUninit};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr::null_mut;
use std::sync::Mutex;

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// The library could not be opened; no call was made.
    Library(String),
    /// What the library answered.
    Call {
        /// One of `sys::SHARPI_E_*`.
        status: i32,
        /// An error number of the operating system or of a device, or 0.
        native_code: i32,
        /// The status by its name, such as "SHARPI_E_KV_FULL".
        name: String,
        /// What was wrong, in a sentence.
        text: String,
    },
}

impl Error {
    /// The status of the call, one of `sys::SHARPI_E_*`; 0 if the library could not be opened.
    pub fn status(&self) -> i32 {
        match self {
            Error::Library(_) => 0,
            Error::Call { status, .. } => *status,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Error::Library(text) => write!(out, "libsharpi cannot be loaded: {}", text),
            Error::Call { name, text, .. } => write!(out, "{}: {}", name, text),
        }
    }
}

impl std::error::Error for Error {}

/// The library, which is opened by the first call. [`sys::Library::find`] says where it is looked
/// for.
pub fn library() -> Result<&'static sys::Library, Error> {
    static OPENED: Mutex<Option<&'static sys::Library>> = Mutex::new(None);
    let mut opened = OPENED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(lib) = *opened {
        return Ok(lib);
    }
    let lib = sys::Library::find().map_err(Error::Library)?;
    let version = unsafe { (lib.sharpi_version)() };
    // The crate has the version of the header that it declares.
    let number = |text: &str| text.parse::<u32>().unwrap_or(0);
    let major = number(env!("CARGO_PKG_VERSION_MAJOR"));
    let wanted = major * 10000 + number(env!("CARGO_PKG_VERSION_MINOR")) * 100;
    if version / 10000 != major || version < wanted {
        let text = format!("it has version {}, this crate needs {}", version, wanted);
        return Err(Error::Library(text));
    }
    *opened = Some(Box::leak(Box::new(lib)));
    Ok(opened.unwrap())
}

/// What the library was built from: version, compiler, tiers.
pub fn build_info() -> Result<String, Error> {
    let lib = library()?;
    Ok(unsafe { sys::text_of((lib.sharpi_build_info)()) })
}

/// An argument that cannot even be handed over.
pub(crate) fn invalid(text: &str) -> Error {
    Error::Call {
        status: sys::SHARPI_E_INVALID_ARGUMENT,
        native_code: 0,
        name: "SHARPI_E_INVALID_ARGUMENT".into(),
        text: text.into(),
    }
}

/// Calls the library with a fresh error struct; what it says becomes the error.
pub(crate) fn call(
    lib: &sys::Library,
    f: impl FnOnce(*mut sys::sharpi_error) -> i32,
) -> Result<(), Error> {
    let mut error = sys::sharpi_error::zeroed();
    error.struct_size = size_of::<sys::sharpi_error>() as u32;
    let status = f(&mut error);
    if status == sys::SHARPI_OK {
        return Ok(());
    }
    let (name, text) = unsafe {
        (sys::text_of((lib.sharpi_status_name)(status)), sys::text_of(error.text.as_ptr()))
    };
    Err(Error::Call { status, native_code: error.native_code, name, text })
}

/// A call that makes an object.
pub(crate) fn create<T>(
    lib: &sys::Library,
    destroy: unsafe extern "C" fn(*mut T),
    f: impl FnOnce(*mut *mut T, *mut sys::sharpi_error) -> i32,
) -> Result<sys::Handle<T>, Error> {
    let mut pointer = null_mut();
    call(lib, |error| f(&mut pointer, error))?;
    Ok(unsafe { sys::Handle::new(pointer, destroy) })
}

/// A call that fills a buffer: asked once more with what it says it needs.
pub(crate) fn filled<T: Clone + Default>(
    lib: &sys::Library,
    first: usize,
    mut f: impl FnMut(*mut T, usize, *mut usize, *mut sys::sharpi_error) -> i32,
) -> Result<Vec<T>, Error> {
    let mut out = vec![T::default(); first.max(1)];
    loop {
        let (cap, mut n) = (out.len(), 0);
        match call(lib, |error| f(out.as_mut_ptr(), cap, &mut n, error)) {
            Err(e) if e.status() == sys::SHARPI_E_BUFFER_TOO_SMALL && n > cap => {
                out.resize(n, T::default());
            }
            Err(e) => return Err(e),
            Ok(()) => {
                out.truncate(n);
                return Ok(out);
            }
        }
    }
}

/// A parameter struct with the library's defaults in it.
pub(crate) fn params<T>(init: unsafe extern "C" fn(*mut T, usize)) -> T {
    let mut value = MaybeUninit::<T>::zeroed();
    unsafe {
        init(value.as_mut_ptr(), size_of::<T>());
        value.assume_init()
    }
}

/// A closure that the library calls with done and total while it works; `false` cancels. A panic
/// in it cancels too, and goes on when the call has returned.
pub(crate) struct Progress<'a> {
    closure: &'a mut dyn FnMut(u64, u64) -> bool,
    panic: Option<Box<dyn Any + Send>>,
}

impl<'a> Progress<'a> {
    pub(crate) fn new(closure: &'a mut dyn FnMut(u64, u64) -> bool) -> Self {
        Progress { closure, panic: None }
    }
    pub(crate) fn user_data(&mut self) -> *mut c_void {
        (self as *mut Self).cast()
    }
    pub(crate) fn go_on(self) {
        if let Some(panic) = self.panic {
            std::panic::resume_unwind(panic);
        }
    }
}

pub(crate) unsafe extern "C" fn on_progress(
    user_data: *mut c_void,
    _phase: u32,
    done: u64,
    total: u64,
) -> i32 {
    let progress = unsafe { &mut *(user_data as *mut Progress) };
    match catch_unwind(AssertUnwindSafe(|| (progress.closure)(done, total))) {
        Ok(true) => 0,
        Ok(false) => 1,
        Err(panic) => {
            progress.panic = Some(panic);
            1
        }
    }
}
