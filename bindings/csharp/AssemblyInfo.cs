// SPDX-License-Identifier: MIT
using System.Reflection;
using System.Runtime.Versioning;

[assembly: AssemblyTitle("LibSharpi")]
[assembly: AssemblyVersion("1.0.0.0")]
[assembly: AssemblyFileVersion("1.0.0.0")]
[assembly: AssemblyInformationalVersion("1.0.0")]
[assembly: TargetFramework(".NETStandard,Version=v2.0")]
