// SPDX-License-Identifier: MIT
// Embedders: vectors of texts, and scores of documents for a query.
using System;
using System.Collections.Generic;
using System.Runtime.InteropServices;
using System.Text;
using static LibSharpi.Sharpi;

namespace LibSharpi
{
    /// <summary>What one vector is made of.</summary>
    public enum Pooling : uint
    {
        /// <summary>What the file says; Embed() fails where it says nothing.</summary>
        Auto = SHARPI_POOLING_AUTO,
        /// <summary>The mean of all rows.</summary>
        Mean = SHARPI_POOLING_MEAN,
        /// <summary>The first row.</summary>
        Cls = SHARPI_POOLING_CLS,
        /// <summary>The last row.</summary>
        Last = SHARPI_POOLING_LAST
    }

    /// <summary>Reads texts without keeping them. One call at a time: a second one fails with
    /// SHARPI_E_BUSY. Cancel() and Resume() are for any thread.</summary>
    public sealed unsafe class Embedder : IDisposable
    {
        /// <summary>For calls of Sharpi.*.</summary>
        public EmbedderHandle Handle { get; private set; }
        readonly Model model; // for its tokenizer
        readonly bool added;

        Embedder(IntPtr pointer, Model model)
        {
            Handle = new EmbedderHandle(pointer);
            this.model = model;
            model.Handle.DangerousAddRef(ref added);
        }

        internal static Embedder Create(Model model, uint? contextSize)
        {
            sharpi_error error = Native.NewError();
            sharpi_embedder_params wanted;
            sharpi_embedder_params_init(&wanted, (UIntPtr)sizeof(sharpi_embedder_params));
            wanted.n_ctx = contextSize ?? wanted.n_ctx;
            IntPtr embedder;
            using (Use use = model.Handle.Use())
            {
                Native.Check(sharpi_embedder_create(use.Pointer, &wanted, &embedder, &error),
                             ref error);
                return new Embedder(embedder, model);
            }
        }

        sharpi_embedder_summary Info()
        {
            sharpi_error error = Native.NewError();
            var info = new sharpi_embedder_summary();
            info.struct_size = (uint)sizeof(sharpi_embedder_summary);
            using (Use use = Handle.Use())
                Native.Check(sharpi_embedder_info(use.Pointer, &info, &error), ref error);
            return info;
        }
        /// <summary>Elements of a vector.</summary>
        public int Size { get { return (int)Info().n_embd; } }
        /// <summary>Whether Rerank() has a score for texts.</summary>
        public bool CanRank { get { return Info().can_rank != 0; } }

        /// <summary>A vector of each text, of length 1. dims: its first so many elements; 0:
        /// all.</summary>
        public float[][] Embed(IList<string> texts, Pooling pooling = Pooling.Auto, uint dims = 0)
        {
            if (texts.Count == 0) return new float[0][];
            var tokens = new List<int[]>();
            foreach (string text in texts) tokens.Add(model.Tokenize(text));
            sharpi_error error = Native.NewError();
            sharpi_embed_params wanted;
            sharpi_embed_params_init(&wanted, (UIntPtr)sizeof(sharpi_embed_params));
            wanted.pooling = (uint)pooling;
            wanted.n_dims = dims;
            var floats = new float[texts.Count * Size];
            ulong n = 0;
            using (var rows = new TextRows(tokens, null))
            using (Use use = Handle.Use())
            fixed (float* to = floats)
                Native.Check(sharpi_embed(use.Pointer, rows.First, TextRows.Size, rows.Count,
                                          &wanted, to, (ulong)floats.Length, &n, &error),
                             ref error);
            int width = (int)n / texts.Count;
            var vectors = new float[texts.Count][];
            for (int i = 0; i < vectors.Length; ++i)
            {
                vectors[i] = new float[width];
                Array.Copy(floats, i * width, vectors[i], 0, width);
            }
            return vectors;
        }

        /// <summary>How well each document answers the query, 0 to 1. instruction: the task, for
        /// models that have a place for it.</summary>
        public float[] Rerank(string query, IList<string> documents, string instruction = null)
        {
            var scores = new float[documents.Count];
            if (scores.Length == 0) return scores;
            var tokens = new List<int[]>();
            var first = new List<uint>();
            foreach (string document in documents)
            {
                uint n;
                tokens.Add(Pair(query, document, instruction, out n));
                first.Add(n);
            }
            sharpi_error error = Native.NewError();
            using (var rows = new TextRows(tokens, first))
            using (Use use = Handle.Use())
            fixed (float* to = scores)
                Native.Check(sharpi_rerank(use.Pointer, rows.First, TextRows.Size, rows.Count, null,
                                           to, &error), ref error);
            return scores;
        }

        int[] Pair(string query, string document, string instruction, out uint nFirst)
        {
            sharpi_error error = Native.NewError();
            byte[] one = Encoding.UTF8.GetBytes(query + "\0");
            byte[] two = Encoding.UTF8.GetBytes(document + "\0");
            byte[] task = null;
            if (instruction != null) task = Native.Terminated(instruction, "instruction");
            uint n = (uint)(one.Length + two.Length) + 64, first = 0;
            using (Use use = model.Handle.Use())
                for (;;)
                {
                    var tokens = new int[n];
                    int status;
                    fixed (byte* q = one)
                    fixed (byte* d = two)
                    fixed (byte* t = task)
                    fixed (int* to = tokens)
                        status = sharpi_rank_tokenize(
                            use.Pointer, q, (UIntPtr)(one.Length - 1), d, (UIntPtr)(two.Length - 1),
                            t, to, (uint)tokens.Length, &n, &first, &error);
                    if (status == SHARPI_E_BUFFER_TOO_SMALL && n > tokens.Length) continue;
                    Native.Check(status, ref error);
                    Array.Resize(ref tokens, (int)n);
                    nFirst = first;
                    return tokens;
                }
        }

        /// <summary>Ends the call that the embedder is in, or the next one.</summary>
        public void Cancel() { using (Use use = Handle.Use()) sharpi_embedder_cancel(use.Pointer); }
        /// <summary>Takes a cancel back that no call has met.</summary>
        public void Resume() { using (Use use = Handle.Use()) sharpi_embedder_resume(use.Pointer); }

        /// <summary>Gives the memory back, when the call that it is in has ended.</summary>
        public void Dispose()
        {
            if (Handle.IsClosed) return;
            Handle.Dispose();
            if (added) model.Handle.DangerousRelease();
        }

        // What the library reads of texts, which stay where they are as long.
        sealed class TextRows : IDisposable
        {
            readonly List<GCHandle> pinned = new List<GCHandle>();
            internal static uint Size { get { return (uint)sizeof(sharpi_text_tokens); } }
            internal uint Count { get; private set; }
            internal sharpi_text_tokens* First { get; private set; }

            internal TextRows(List<int[]> texts, List<uint> first)
            {
                var rows = new sharpi_text_tokens[texts.Count];
                for (int i = 0; i < rows.Length; ++i)
                {
                    rows[i].tokens = (int*)Pin(texts[i]);
                    rows[i].n_tokens = (uint)texts[i].Length;
                    rows[i].n_first = first == null ? 0 : first[i];
                }
                Count = (uint)rows.Length;
                First = (sharpi_text_tokens*)Pin(rows);
            }
            IntPtr Pin(object array)
            {
                pinned.Add(GCHandle.Alloc(array, GCHandleType.Pinned));
                return pinned[pinned.Count - 1].AddrOfPinnedObject();
            }
            public void Dispose() { foreach (GCHandle pin in pinned) pin.Free(); }
        }
    }
}
