// SPDX-License-Identifier: MIT
// Sessions: what was read, and what follows.
using System;
using System.Collections.Generic;
using System.Text;
using static LibSharpi.Sharpi;

namespace LibSharpi
{
    /// <summary>How the next token is drawn; meaning and order as in
    /// sharpi_sampler_params.</summary>
    public sealed class Sampler
    {
        /// <summary>0 = greedy.</summary>
        public float Temperature { get; set; } = 0.7f;
        /// <summary>0 = off.</summary>
        public uint TopK { get; set; } = 40;
        /// <summary>1 = off.</summary>
        public float TopP { get; set; } = 0.95f;
        /// <summary>0 = off.</summary>
        public float MinP { get; set; } = 0.05f;
        /// <summary>1 = off.</summary>
        public float RepeatPenalty { get; set; } = 1;
        /// <summary>Null: another one for every session.</summary>
        public ulong? Seed { get; set; }
        /// <summary>The most likely token, always.</summary>
        public static Sampler Greedy { get { return new Sampler { Temperature = 0 }; } }
    }

    /// <summary>The tokens that were read, their KV rows, and what draws the next one. One call at
    /// a time: a second one fails with SHARPI_E_BUSY. Cancel() and Resume() are for any
    /// thread.</summary>
    public sealed unsafe class Session : IDisposable
    {
        /// <summary>For calls of Sharpi.*.</summary>
        public SessionHandle Handle { get; private set; }
        // A handle of its own: the model's may be disposed before this one.
        readonly ModelHandle model;
        readonly bool added;

        Session(IntPtr pointer, ModelHandle model)
        {
            Handle = new SessionHandle(pointer);
            this.model = model;
            model.DangerousAddRef(ref added);
        }

        internal static Session Create(Model model)
        {
            sharpi_error error = Native.NewError();
            IntPtr session;
            using (Use use = model.Handle.Use())
            {
                Native.Check(sharpi_session_create(use.Pointer, null, &session, &error), ref error);
                return new Session(session, model.Handle);
            }
        }

        /// <summary>Reads tokens behind those that are there. The closure is told how many of how
        /// many are read; false cancels, and whole chunks stay read.</summary>
        public void Prefill(int[] tokens, Func<ulong, ulong, bool> progress = null)
        {
            sharpi_error error = Native.NewError();
            var told = new Progress(progress);
            sharpi_prefill_params options;
            sharpi_prefill_params_init(&options, (UIntPtr)sizeof(sharpi_prefill_params));
            options.progress = told.Function;
            int status;
            using (Use use = Handle.Use())
            fixed (int* first = tokens)
                status = sharpi_session_prefill(use.Pointer, first, (uint)tokens.Length, &options,
                                                null, &error);
            told.GoOn();
            Native.Check(status, ref error);
        }

        /// <summary>How tokens are drawn from now on.</summary>
        public void SetSampler(Sampler sampler)
        {
            sharpi_error error = Native.NewError();
            sharpi_sampler_params wanted;
            sharpi_sampler_params_init(&wanted, (UIntPtr)sizeof(sharpi_sampler_params));
            wanted.temperature = sampler.Temperature;
            wanted.top_k = sampler.TopK;
            wanted.top_p = sampler.TopP;
            wanted.min_p = sampler.MinP;
            wanted.repeat_penalty = sampler.RepeatPenalty;
            wanted.seed = sampler.Seed ?? wanted.seed;
            using (Use use = Handle.Use())
                Native.Check(sharpi_session_set_sampler(use.Pointer, &wanted, &error), ref error);
        }

        /// <summary>Draws a token, and reads it unless it ends the generation.</summary>
        public int Step()
        {
            sharpi_error error = Native.NewError();
            int token;
            uint n;
            using (Use use = Handle.Use())
                Native.Check(sharpi_session_step(use.Pointer, null, &token, 1, &n, &error),
                             ref error);
            return token;
        }

        /// <summary>What follows, as text in whole characters, of at most so many tokens. Ends
        /// where the model does.</summary>
        public IEnumerable<string> Generate(int tokens)
        {
            var stream = new TextStream(this);
            for (int i = 0; i < tokens; ++i)
            {
                int token = Step();
                if (stream.IsEnd(token)) break;
                string piece = stream.Add(token);
                if (piece.Length > 0) yield return piece;
            }
            string rest = stream.Finish();
            if (rest.Length > 0) yield return rest;
        }

        sealed class TextStream
        {
            readonly ModelHandle model;
            sharpi_text_stream state;
            internal TextStream(Session session) { model = session.model; }

            internal bool IsEnd(int token)
            {
                return sharpi_token_is_end(model.DangerousGetHandle(), token) != 0;
            }
            internal string Add(int token)
            {
                sharpi_error error = Native.NewError();
                var len = (UIntPtr)64;
                for (;;)
                {
                    var utf8 = new byte[(int)len];
                    int status;
                    fixed (byte* bytes = utf8)
                    fixed (sharpi_text_stream* held = &state)
                        status = sharpi_detokenize_stream(
                            model.DangerousGetHandle(), held, &token, 1, 0, bytes,
                            (UIntPtr)utf8.Length, &len, &error);
                    if (status == SHARPI_E_BUFFER_TOO_SMALL && (int)len > utf8.Length) continue;
                    Native.Check(status, ref error);
                    return Encoding.UTF8.GetString(utf8, 0, (int)len);
                }
            }
            internal string Finish()
            {
                sharpi_error error = Native.NewError();
                UIntPtr len;
                byte* bytes = stackalloc byte[16];
                fixed (sharpi_text_stream* held = &state)
                    Native.Check(sharpi_text_stream_finish(held, bytes, (UIntPtr)16, &len, &error),
                                 ref error);
                return Encoding.UTF8.GetString(bytes, (int)len);
            }
        }

        /// <summary>Goes back to the first n tokens. What is reachable depends on the model and its
        /// plan.</summary>
        public void Truncate(uint tokens)
        {
            sharpi_error error = Native.NewError();
            using (Use use = Handle.Use())
                Native.Check(sharpi_session_truncate(use.Pointer, tokens, &error), ref error);
        }

        /// <summary>A second session with the same tokens, which shares the rows that both
        /// have.</summary>
        public Session Fork()
        {
            sharpi_error error = Native.NewError();
            IntPtr session;
            using (Use use = Handle.Use())
                Native.Check(sharpi_session_fork(use.Pointer, &session, &error), ref error);
            return new Session(session, model);
        }

        /// <summary>Tokens that were read.</summary>
        public uint TokenCount
        {
            get
            {
                sharpi_error error = Native.NewError();
                var info = new sharpi_session_summary();
                info.struct_size = (uint)sizeof(sharpi_session_summary);
                using (Use use = Handle.Use())
                    Native.Check(sharpi_session_info(use.Pointer, &info, &error), ref error);
                return info.n_tokens;
            }
        }

        /// <summary>The call that the session is in, or the next one, fails with
        /// SHARPI_E_CANCELLED. Any thread.</summary>
        public void Cancel() { using (Use use = Handle.Use()) sharpi_session_cancel(use.Pointer); }
        /// <summary>Takes a cancel back that no call has met. Any thread.</summary>
        public void Resume() { using (Use use = Handle.Use()) sharpi_session_resume(use.Pointer); }

        /// <summary>Gives the session's memory back, when the call that it is in has
        /// ended.</summary>
        public void Dispose()
        {
            if (Handle.IsClosed) return;
            Handle.Dispose();
            if (added) model.DangerousRelease();
        }
    }
}
