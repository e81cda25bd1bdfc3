// SPDX-License-Identifier: MIT
// Models: planned and loaded, and what their vocabulary says.
using System;
using System.Collections.Generic;
using System.Runtime.InteropServices;
using System.Text;
using static LibSharpi.Sharpi;

namespace LibSharpi
{
    /// <summary>How KV rows are stored.</summary>
    public enum Kv : uint
    {
        /// <summary>The architecture's default, narrowed only if needed.</summary>
        Auto = SHARPI_KV_AUTO,
        /// <summary>4 bytes an element.</summary>
        F32 = SHARPI_KV_F32,
        /// <summary>2 bytes an element.</summary>
        Bf16 = SHARPI_KV_BF16,
        /// <summary>34 bytes for 32 elements.</summary>
        Q8 = SHARPI_KV_Q8_0,
        /// <summary>18 bytes for 32 elements.</summary>
        Q4 = SHARPI_KV_Q4
    }

    /// <summary>How a model is placed, and what its sessions may hold. Null leaves a value to the
    /// library.</summary>
    public sealed class ModelOptions
    {
        /// <summary>Tokens that a session holds at most.</summary>
        public uint? ContextSize { get; set; }
        /// <summary>How sessions store keys and values.</summary>
        public Kv Kv { get; set; }
        /// <summary>Layers on the GPU; null: as many as fit.</summary>
        public int? GpuLayers { get; set; }
        /// <summary>Threads of the CPU tier.</summary>
        public uint? Threads { get; set; }
        /// <summary>Sessions whose memory is planned; null: 1.</summary>
        public uint? Sessions { get; set; }
        /// <summary>Activations stay in f32.</summary>
        public bool Exact { get; set; }
        /// <summary>The same bits for any chunking and number of threads.</summary>
        public bool Deterministic { get; set; }
        /// <summary>Weights of the CPU stay in the mapped file and are not copied.</summary>
        public bool MapFile { get; set; }
    }

    /// <summary>One message of a conversation.</summary>
    public struct Message
    {
        /// <summary>"system", "user", "assistant".</summary>
        public readonly string Role;
        /// <summary>What it says.</summary>
        public readonly string Content;
        /// <summary>A message of this role.</summary>
        public Message(string role, string content) { Role = role; Content = content; }
    }

    /// <summary>A loaded model, for any thread. Its sessions keep its memory alive.</summary>
    public sealed unsafe class Model : IDisposable
    {
        /// <summary>For calls of Sharpi.*.</summary>
        public ModelHandle Handle { get; private set; }

        Model(IntPtr pointer) { Handle = new ModelHandle(pointer); }

        /// <summary>Plans a file and loads its weights. Fails with SHARPI_E_DOES_NOT_FIT, before
        /// anything is read, where memory is short. The closure is told how many bytes of how many
        /// are loaded; false cancels.</summary>
        public static Model Load(string path, ModelOptions options = null,
                                 Func<ulong, ulong, bool> progress = null)
        {
            sharpi_error error = Native.NewError();
            options = options ?? new ModelOptions();
            using (ContextHandle context = OpenContext(options))
            using (PlanHandle plan = MakePlan(context, path, options))
            {
                IntPtr model;
                var told = new Progress(progress);
                int status = sharpi_model_load(plan.DangerousGetHandle(), told.Function, null,
                                               &model, &error);
                Model loaded = status == SHARPI_OK ? new Model(model) : null;
                told.GoOn();
                Native.Check(status, ref error);
                return loaded;
            }
        }

        static ContextHandle OpenContext(ModelOptions options)
        {
            sharpi_error error = Native.NewError();
            sharpi_context_params wanted;
            sharpi_context_params_init(&wanted, (UIntPtr)sizeof(sharpi_context_params));
            wanted.n_threads = options.Threads ?? wanted.n_threads;
            IntPtr context;
            Native.Check(sharpi_context_create(&wanted, &context, &error), ref error);
            return new ContextHandle(context);
        }

        static PlanHandle MakePlan(ContextHandle context, string path, ModelOptions options)
        {
            sharpi_error error = Native.NewError();
            sharpi_session_params session;
            sharpi_session_params_init(&session, (UIntPtr)sizeof(sharpi_session_params));
            session.n_ctx = options.ContextSize ?? session.n_ctx;
            session.k_dtype = session.v_dtype = (uint)options.Kv;
            sharpi_plan_params wanted;
            sharpi_plan_params_init(&wanted, (UIntPtr)sizeof(sharpi_plan_params));
            wanted.n_gpu_layers = options.GpuLayers ?? wanted.n_gpu_layers;
            wanted.n_sessions = options.Sessions ?? 1;
            if (options.Exact) wanted.arithmetic = SHARPI_ARITHMETIC_EXACT;
            if (options.MapFile) wanted.load_mode = SHARPI_LOAD_MAP;
            wanted.deterministic = options.Deterministic ? 1u : 0u;
            wanted.session = &session;
            IntPtr plan;
            fixed (byte* file = Native.Terminated(path, "path"))
                Native.Check(sharpi_plan_create(context.DangerousGetHandle(), file, &wanted, &plan,
                                                &error), ref error);
            return new PlanHandle(plan);
        }

        /// <summary>A session with what was planned for each.</summary>
        public Session CreateSession() { return Session.Create(this); }

        /// <summary>What reads texts for their vectors. contextSize: tokens of the longest text;
        /// null: as planned.</summary>
        public Embedder CreateEmbedder(uint? contextSize = null)
        {
            return Embedder.Create(this, contextSize);
        }

        /// <summary>The text as token ids, with what the vocabulary puts around a text. What looks
        /// like a control token is text.</summary>
        public int[] Tokenize(string text)
        {
            sharpi_error error = Native.NewError();
            byte[] utf8 = Encoding.UTF8.GetBytes(text + "\0"); // an empty array has no address
            var len = (UIntPtr)(utf8.Length - 1);
            uint n = (uint)utf8.Length + 8;
            using (Use use = Handle.Use())
                for (;;)
                {
                    var tokens = new int[n];
                    int status;
                    fixed (byte* bytes = utf8)
                    fixed (int* first = tokens)
                        status = sharpi_tokenize(use.Pointer, bytes, len,
                                                 SHARPI_TOKENIZE_ADD_SPECIAL, first,
                                                 (uint)tokens.Length, &n, &error);
                    if (status == SHARPI_E_BUFFER_TOO_SMALL && n > tokens.Length) continue;
                    Native.Check(status, ref error);
                    Array.Resize(ref tokens, (int)n);
                    return tokens;
                }
        }

        /// <summary>A conversation in the model's chat format, ready for its answer. No text can
        /// make a control token.</summary>
        public int[] ChatTokens(params Message[] messages)
        {
            var rows = new sharpi_message[messages.Length];
            var pinned = new List<GCHandle>();
            try
            {
                for (int i = 0; i < rows.Length; ++i)
                {
                    byte[] content = Encoding.UTF8.GetBytes(messages[i].Content + "\0");
                    rows[i].role = Pin(pinned, Native.Terminated(messages[i].Role, "role"));
                    rows[i].content = Pin(pinned, content);
                    rows[i].content_len = (UIntPtr)(content.Length - 1);
                }
                return ChatTokens(rows);
            }
            finally { foreach (GCHandle pin in pinned) pin.Free(); }
        }

        static byte* Pin(List<GCHandle> pinned, byte[] bytes)
        {
            pinned.Add(GCHandle.Alloc(bytes, GCHandleType.Pinned));
            return (byte*)pinned[pinned.Count - 1].AddrOfPinnedObject();
        }

        int[] ChatTokens(sharpi_message[] rows)
        {
            sharpi_error error = Native.NewError();
            sharpi_chat_params chat;
            sharpi_chat_params_init(&chat, (UIntPtr)sizeof(sharpi_chat_params));
            chat.n_messages = (uint)rows.Length;
            uint n = 256;
            using (Use use = Handle.Use())
            fixed (sharpi_message* messages = rows)
                for (;;)
                {
                    chat.messages = messages;
                    var tokens = new int[n];
                    int status;
                    fixed (int* first = tokens)
                        status = sharpi_chat_tokenize(use.Pointer, &chat, first,
                                                      (uint)tokens.Length, &n, &error);
                    if (status == SHARPI_E_BUFFER_TOO_SMALL && n > tokens.Length) continue;
                    Native.Check(status, ref error);
                    Array.Resize(ref tokens, (int)n);
                    return tokens;
                }
        }

        /// <summary>The text of tokens, control tokens left out.</summary>
        public string Detokenize(int[] tokens)
        {
            if (tokens.Length == 0) return "";
            sharpi_error error = Native.NewError();
            var len = (UIntPtr)(tokens.Length * 8 + 16);
            using (Use use = Handle.Use())
                for (;;)
                {
                    var utf8 = new byte[(int)len];
                    int status;
                    fixed (byte* bytes = utf8)
                    fixed (int* first = tokens)
                        status = sharpi_detokenize(use.Pointer, first, (uint)tokens.Length, 0,
                                                   bytes, (UIntPtr)utf8.Length, &len, &error);
                    if (status == SHARPI_E_BUFFER_TOO_SMALL && (int)len > utf8.Length) continue;
                    Native.Check(status, ref error);
                    return Encoding.UTF8.GetString(utf8, 0, (int)len);
                }
        }

        /// <summary>Whether this token ends a generation.</summary>
        public bool IsEnd(int token)
        {
            using (Use use = Handle.Use()) return sharpi_token_is_end(use.Pointer, token) != 0;
        }

        /// <summary>Gives the reference back; sessions keep theirs.</summary>
        public void Dispose() { Handle.Dispose(); }
    }
}
