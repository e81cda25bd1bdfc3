// SPDX-License-Identifier: MIT
// How near documents are to a query, a line each: the score of a reranker, else the cosine of two
// vectors.
//     mcs -r:LibSharpi.dll Rank.cs && mono Rank.exe MODEL.gguf QUERY DOCUMENT...
using System;
using System.Collections.Generic;
using System.Globalization;
using LibSharpi;

static class Rank
{
    static float[] Score(Embedder embedder, string query, List<string> documents)
    {
        if (embedder.CanRank) return embedder.Rerank(query, documents);
        var texts = new List<string> { query };
        texts.AddRange(documents);
        float[][] vectors = embedder.Embed(texts);
        var scores = new float[documents.Count];
        for (int i = 0; i < scores.Length; ++i)
            for (int j = 0; j < vectors[0].Length; ++j)
                scores[i] += vectors[0][j] * vectors[i + 1][j];
        return scores;
    }

    static int Main(string[] args)
    {
        if (args.Length < 3)
        {
            Console.Error.WriteLine("usage: Rank MODEL.gguf QUERY DOCUMENT...");
            return 2;
        }
        try
        {
            var documents = new List<string>(args).GetRange(2, args.Length - 2);
            using (Model model = Model.Load(args[0]))
            using (Embedder embedder = model.CreateEmbedder())
            {
                float[] scores = Score(embedder, args[1], documents);
                for (int i = 0; i < scores.Length; ++i)
                    Console.WriteLine(scores[i].ToString("F5", CultureInfo.InvariantCulture) + " " +
                                      documents[i]);
            }
            return 0;
        }
        catch (Exception e) when (e is SharpiException || e is DllNotFoundException)
        {
            Console.Error.WriteLine("Rank: " + e.Message);
            return 1;
        }
    }
}
