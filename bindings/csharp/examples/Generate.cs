// SPDX-License-Identifier: MIT
// Plans and loads a GGUF model, reads a prompt and prints what follows, greedily:
//     mcs -unsafe -out:generate.exe Generate.cs ../Sharpi.cs
//     mono generate.exe MODEL PROMPT [TOKENS]
// With .NET, a project file with <AllowUnsafeBlocks>true</AllowUnsafeBlocks> builds the same files.
using System;
using System.Runtime.InteropServices;
using System.Text;
using LibSharpi;
using static LibSharpi.Sharpi;

/// What the library said: the name of the status and its sentence.
class SharpiException : Exception
{
    public SharpiException(string text) : base(text) { }
}

/// Owns one reference to an object of the library. Objects may be destroyed in any order, and on
/// any thread, so a finalizer may do it.
class Handle : SafeHandle
{
    readonly Action<IntPtr> destroy;
    public Handle(IntPtr pointer, Action<IntPtr> destroy) : base(IntPtr.Zero, true)
    {
        this.destroy = destroy;
        SetHandle(pointer);
    }
    public override bool IsInvalid { get { return handle == IntPtr.Zero; } }
    protected override bool ReleaseHandle()
    {
        destroy(handle);
        return true;
    }
    public IntPtr Pointer { get { return handle; } }
}

static unsafe class Program
{
    static string Text(byte* utf8)
    {
        int n = 0;
        while (utf8[n] != 0) ++n;
        return Encoding.UTF8.GetString(utf8, n);
    }

    static sharpi_error NewError()
    {
        return new sharpi_error { struct_size = (uint)sizeof(sharpi_error) };
    }

    static void Check(int status, sharpi_error error)
    {
        if (status != SHARPI_OK)
            throw new SharpiException(Text(sharpi_status_name(status)) + ": " + Text(error.text));
    }

    static string KvName(uint dtype)
    {
        return dtype == SHARPI_KV_F32 ? "f32" : dtype == SHARPI_KV_BF16 ? "bf16"
             : dtype == SHARPI_KV_Q8_0 ? "q8_0" : dtype == SHARPI_KV_Q4 ? "q4" : "none";
    }

    static Handle OpenContext()
    {
        sharpi_error error = NewError();
        sharpi_context_params options;
        sharpi_context_params_init(&options, (UIntPtr)sizeof(sharpi_context_params));
        options.n_threads = 2;
        IntPtr context;
        Check(sharpi_context_create(&options, &context, &error), error);
        return new Handle(context, sharpi_context_destroy);
    }

    static Handle MakePlan(Handle context, string path)
    {
        sharpi_error error = NewError();
        sharpi_session_params session;
        sharpi_session_params_init(&session, (UIntPtr)sizeof(sharpi_session_params));
        session.n_ctx = 256;
        session.k_dtype = SHARPI_KV_BF16;
        session.v_dtype = SHARPI_KV_BF16;
        sharpi_plan_params options;
        sharpi_plan_params_init(&options, (UIntPtr)sizeof(sharpi_plan_params));
        options.n_gpu_layers = 0;
        options.session = &session;
        IntPtr plan;
        fixed (byte* file = Encoding.UTF8.GetBytes(path + "\0"))
            Check(sharpi_plan_create(context.Pointer, file, &options, &plan, &error), error);
        return new Handle(plan, sharpi_plan_destroy);
    }

    static void PrintPlan(Handle plan)
    {
        sharpi_error error = NewError();
        var summary = new sharpi_plan_summary { struct_size = (uint)sizeof(sharpi_plan_summary) };
        Check(sharpi_plan_info(plan.Pointer, &summary, &error), error);
        var rows = new sharpi_memory_row[summary.n_rows];
        uint n = 0;
        fixed (sharpi_memory_row* first = rows)
            Check(sharpi_plan_rows(plan.Pointer, first, (uint)sizeof(sharpi_memory_row),
                                   summary.n_rows, &n, &error), error);
        ulong kv = 0;
        foreach (var row in rows)
            if (row.purpose == SHARPI_ROW_KV) kv += row.payload_bytes;
        Console.WriteLine("plan: context {0}, KV {1}/{2} of {3} bytes, {4} rows", summary.n_ctx,
                          KvName(summary.k_dtype), KvName(summary.v_dtype), kv, n);
    }

    static Handle LoadModel(string path)
    {
        sharpi_error error = NewError();
        IntPtr model;
        // The model keeps the plan and the context alive; our references go here.
        using (Handle context = OpenContext())
        using (Handle plan = MakePlan(context, path))
        {
            PrintPlan(plan);
            Check(sharpi_model_load(plan.Pointer, IntPtr.Zero, null, &model, &error), error);
        }
        return new Handle(model, sharpi_model_destroy);
    }

    static int[] Tokenize(Handle model, string text)
    {
        sharpi_error error = NewError();
        byte[] utf8 = Encoding.UTF8.GetBytes(text);
        var tokens = new int[utf8.Length + 8]; // a token has a byte at least, besides BOS and EOS
        uint n = 0;
        fixed (byte* bytes = utf8)
        fixed (int* result = tokens)
            Check(sharpi_tokenize(model.Pointer, bytes, (UIntPtr)utf8.Length,
                                  SHARPI_TOKENIZE_ADD_SPECIAL, result, (uint)tokens.Length, &n,
                                  &error), error);
        Array.Resize(ref tokens, (int)n);
        return tokens;
    }

    static void ReadPrompt(Handle session, int[] tokens)
    {
        sharpi_error error = NewError();
        int calls = 0;
        sharpi_progress_fn progress = (user_data, phase, done, total) => { ++calls; return 0; };
        sharpi_prefill_params options;
        sharpi_prefill_params_init(&options, (UIntPtr)sizeof(sharpi_prefill_params));
        options.progress = Marshal.GetFunctionPointerForDelegate(progress);
        uint committed = 0;
        fixed (int* first = tokens)
            Check(sharpi_session_prefill(session.Pointer, first, (uint)tokens.Length, &options,
                                         &committed, &error), error);
        GC.KeepAlive(progress);
        Console.WriteLine("prompt: {0} tokens, progress told {1} times", committed, calls);
    }

    // Samples with temperature 0 and prints whole characters as they come.
    static void Generate(Handle model, Handle session, int nTokens)
    {
        sharpi_error error = NewError();
        sharpi_sampler_params greedy;
        sharpi_sampler_params_init(&greedy, (UIntPtr)sizeof(sharpi_sampler_params));
        greedy.temperature = 0;
        Check(sharpi_session_set_sampler(session.Pointer, &greedy, &error), error);
        var stream = new sharpi_text_stream();
        byte* piece = stackalloc byte[1024];
        Console.Write("text:");
        for (int i = 0; i < nTokens; ++i)
        {
            int token;
            uint n;
            UIntPtr len;
            Check(sharpi_session_step(session.Pointer, null, &token, 1, &n, &error), error);
            if (sharpi_token_is_end(model.Pointer, token) != 0) break;
            Check(sharpi_detokenize_stream(model.Pointer, &stream, &token, 1, 0, piece,
                                           (UIntPtr)1024, &len, &error), error);
            Console.Write(Encoding.UTF8.GetString(piece, (int)len));
        }
        Console.WriteLine();
    }

    static void Run(string path, string prompt, int nTokens)
    {
        uint version = sharpi_version();
        Console.WriteLine("library: {0}.{1}", version / 10000, version / 100 % 100);
        using (Handle model = LoadModel(path))
        {
            sharpi_error error = NewError();
            IntPtr created;
            Check(sharpi_session_create(model.Pointer, null, &created, &error), error);
            using (var session = new Handle(created, sharpi_session_destroy))
            {
                ReadPrompt(session, Tokenize(model, prompt));
                Generate(model, session, nTokens);
                var info = new sharpi_session_summary();
                info.struct_size = (uint)sizeof(sharpi_session_summary);
                Check(sharpi_session_info(session.Pointer, &info, &error), error);
                Console.WriteLine("session: {0} tokens, KV {1}/{2}", info.n_tokens,
                                  KvName(info.k_dtype), KvName(info.v_dtype));
            }
        }
    }

    static int Main(string[] args)
    {
        int nTokens = 32;
        if (args.Length < 2 || (args.Length > 2 && !int.TryParse(args[2], out nTokens)))
        {
            Console.Error.WriteLine("usage: generate MODEL.gguf PROMPT [TOKENS]");
            return 2;
        }
        try
        {
            Run(args[0], args[1], nTokens);
            return 0;
        }
        catch (Exception e) when (e is SharpiException || e is DllNotFoundException)
        {
            Console.Error.WriteLine("generate: " + e.Message);
            return 1;
        }
    }
}
