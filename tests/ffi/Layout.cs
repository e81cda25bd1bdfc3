// SPDX-License-Identifier: MIT
// Prints what Sharpi.cs assumes of the ABI, read from the compiled declarations by reflection, in
// the form of header_facts.sh.
using System;
using System.Linq;
using System.Reflection;
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;
using LibSharpi;

static class Layout
{
    static string Kind(Type type)
    {
        if (type == typeof(uint)) return "u32";
        if (type == typeof(int)) return "i32";
        if (type == typeof(ulong) || type == typeof(UIntPtr)) return "u64";
        if (type == typeof(float)) return "f32";
        if (type == typeof(double)) return "f64";
        if (type == typeof(void)) return "void";
        if (type == typeof(IntPtr) || type.IsPointer) return "p";
        throw new NotSupportedException("a type that the C boundary does not have: " + type);
    }

    static int Size(Type type)
    {
        return type.IsPointer ? IntPtr.Size : Marshal.SizeOf(type);
    }

    static string Signature(MethodInfo method)
    {
        return Kind(method.ReturnType) + "(" +
               string.Join(",", method.GetParameters().Select(p => Kind(p.ParameterType))) + ")";
    }

    static void PrintStruct(Type type)
    {
        Console.WriteLine("struct {0} {1}", type.Name, Marshal.SizeOf(type));
        foreach (FieldInfo field in type.GetFields(BindingFlags.Public | BindingFlags.Instance))
        {
            var buffer = field.GetCustomAttribute<FixedBufferAttribute>();
            int size = buffer != null ? buffer.Length * Size(buffer.ElementType)
                                      : Size(field.FieldType);
            Console.WriteLine("field {0}.{1} {2} {3} {4}", type.Name, field.Name,
                              Marshal.OffsetOf(type, field.Name), size,
                              buffer != null ? "a" : Kind(field.FieldType));
        }
    }

    static void Main()
    {
        foreach (Type type in typeof(Sharpi).Assembly.GetTypes())
        {
            if (type.Namespace != "LibSharpi" || type.IsNested || type == typeof(Sharpi)) continue;
            if (typeof(Delegate).IsAssignableFrom(type))
                Console.WriteLine("callback {0} {1}", type.Name,
                                  Signature(type.GetMethod("Invoke")));
            else
                PrintStruct(type);
        }
        foreach (FieldInfo field in typeof(Sharpi).GetFields().Where(f => f.IsLiteral))
            if (field.Name != "Library")
                Console.WriteLine("constant {0} {1}", field.Name, field.GetRawConstantValue());
        const BindingFlags functions = BindingFlags.Public | BindingFlags.Static;
        foreach (MethodInfo method in typeof(Sharpi).GetMethods(functions))
            Console.WriteLine("function {0} {1}", method.Name, Signature(method));
    }
}
