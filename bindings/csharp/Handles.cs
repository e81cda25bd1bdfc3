// SPDX-License-Identifier: MIT
// What the safe layer stands on: failures as exceptions, owned references, callbacks.
using System;
using System.Runtime.ExceptionServices;
using System.Runtime.InteropServices;
using System.Text;
using static LibSharpi.Sharpi;

namespace LibSharpi
{
    /// <summary>A call of the library failed; the message is the status by its name, and the
    /// library's sentence.</summary>
    public sealed class SharpiException : Exception
    {
        /// <summary>One of SHARPI_E_*.</summary>
        public int Status { get; private set; }
        /// <summary>An error number of the operating system or of a device, or 0.</summary>
        public int NativeCode { get; private set; }

        internal SharpiException(int status, int nativeCode, string text) : base(text)
        {
            Status = status;
            NativeCode = nativeCode;
        }
    }

    /// <summary>Owns one reference to an object of the library. Objects may be destroyed in any
    /// order, and on any thread.</summary>
    public abstract class SharpiHandle : SafeHandle
    {
        internal SharpiHandle(IntPtr pointer) : base(IntPtr.Zero, true) { SetHandle(pointer); }
        /// <inheritdoc/>
        public override bool IsInvalid { get { return handle == IntPtr.Zero; } }
        internal Use Use() { return new Use(this); }
    }

    /// <summary>A reference to a context.</summary>
    public sealed class ContextHandle : SharpiHandle
    {
        internal ContextHandle(IntPtr pointer) : base(pointer) { }
        /// <inheritdoc/>
        protected override bool ReleaseHandle() { sharpi_context_destroy(handle); return true; }
    }
    /// <summary>A reference to a plan.</summary>
    public sealed class PlanHandle : SharpiHandle
    {
        internal PlanHandle(IntPtr pointer) : base(pointer) { }
        /// <inheritdoc/>
        protected override bool ReleaseHandle() { sharpi_plan_destroy(handle); return true; }
    }
    /// <summary>A reference to a model.</summary>
    public sealed class ModelHandle : SharpiHandle
    {
        internal ModelHandle(IntPtr pointer) : base(pointer) { }
        /// <inheritdoc/>
        protected override bool ReleaseHandle() { sharpi_model_destroy(handle); return true; }
    }
    /// <summary>A reference to a session.</summary>
    public sealed class SessionHandle : SharpiHandle
    {
        internal SessionHandle(IntPtr pointer) : base(pointer) { }
        /// <inheritdoc/>
        protected override bool ReleaseHandle() { sharpi_session_destroy(handle); return true; }
    }

    /// <summary>A reference to an embedder.</summary>
    public sealed class EmbedderHandle : SharpiHandle
    {
        internal EmbedderHandle(IntPtr pointer) : base(pointer) { }
        /// <inheritdoc/>
        protected override bool ReleaseHandle() { sharpi_embedder_destroy(handle); return true; }
    }

    // A handle during a call: who disposes it meanwhile, on another thread, does not pull it away.
    struct Use : IDisposable
    {
        readonly SharpiHandle handle;
        readonly bool added;
        internal Use(SharpiHandle handle)
        {
            this.handle = handle;
            added = false;
            handle.DangerousAddRef(ref added); // ObjectDisposedException, if it is
        }
        internal IntPtr Pointer { get { return handle.DangerousGetHandle(); } }
        public void Dispose() { if (added) handle.DangerousRelease(); }
    }

    // A closure that the library calls while it works; false cancels. What it throws cancels too,
    // and is thrown when the call has returned.
    sealed unsafe class Progress
    {
        readonly Func<ulong, ulong, bool> closure;
        readonly sharpi_progress_fn function;
        ExceptionDispatchInfo thrown;

        internal Progress(Func<ulong, ulong, bool> closure)
        {
            this.closure = closure;
            function = Called;
        }
        internal IntPtr Function
        {
            get
            {
                return closure == null ? IntPtr.Zero
                     : Marshal.GetFunctionPointerForDelegate(function);
            }
        }
        int Called(void* userData, uint phase, ulong done, ulong total)
        {
            try { return closure(done, total) ? 0 : 1; }
            catch (Exception e)
            {
                thrown = ExceptionDispatchInfo.Capture(e);
                return 1;
            }
        }
        internal void GoOn()
        {
            GC.KeepAlive(function);
            if (thrown != null) thrown.Throw();
        }
    }

    static unsafe class Native
    {
        internal static string Text(byte* utf8)
        {
            int n = 0;
            while (utf8[n] != 0) ++n;
            return Encoding.UTF8.GetString(utf8, n);
        }
        internal static byte[] Terminated(string text, string what)
        {
            if (text == null) throw new ArgumentNullException(what);
            if (text.IndexOf('\0') >= 0) throw new ArgumentException("contains a NUL", what);
            return Encoding.UTF8.GetBytes(text + "\0");
        }
        internal static sharpi_error NewError()
        {
            return new sharpi_error { struct_size = (uint)sizeof(sharpi_error) };
        }
        internal static void Check(int status, ref sharpi_error error)
        {
            if (status == SHARPI_OK) return;
            string name = Text(sharpi_status_name(status));
            fixed (byte* text = error.text)
                throw new SharpiException(status, error.native_code, name + ": " + Text(text));
        }
    }
}
