// SPDX-License-Identifier: MIT
// Asks a model what a file says, greedily:
//     mcs -r:LibSharpi.dll Ask.cs && mono Ask.exe MODEL.gguf FILE [TOKENS]
using System;
using System.IO;
using LibSharpi;

static class Ask
{
    static void Run(string path, string question, int tokens)
    {
        using (Model model = Model.Load(path, new ModelOptions { ContextSize = 4096 }))
        using (Session session = model.CreateSession())
        {
            session.SetSampler(Sampler.Greedy);
            session.Prefill(model.ChatTokens(new Message("user", question)));
            foreach (string piece in session.Generate(tokens)) Console.Write(piece);
            Console.WriteLine();
        }
    }

    static int Main(string[] args)
    {
        int tokens = 32;
        if (args.Length < 2 || (args.Length > 2 && !int.TryParse(args[2], out tokens)))
        {
            Console.Error.WriteLine("usage: Ask MODEL.gguf FILE [TOKENS]");
            return 2;
        }
        try
        {
            Run(args[0], File.ReadAllText(args[1]).TrimEnd('\n'), tokens);
            return 0;
        }
        catch (Exception e)
            when (e is SharpiException || e is DllNotFoundException || e is IOException)
        {
            Console.Error.WriteLine("Ask: " + e.Message);
            return 1;
        }
    }
}
