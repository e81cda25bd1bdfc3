// SPDX-License-Identifier: MIT

//go:build !sharpi_system

package sharpi

// The library that the packaged module brings, found by programs where it lies in the module's
// folder.

/*
#cgo CFLAGS: -I${SRCDIR}/include
#cgo linux,amd64 LDFLAGS: -L${SRCDIR}/lib/linux_amd64 -l:libsharpi.so.1
#cgo linux,amd64 LDFLAGS: -Wl,-rpath,${SRCDIR}/lib/linux_amd64
#cgo linux,arm64 LDFLAGS: -L${SRCDIR}/lib/linux_arm64 -l:libsharpi.so.1
#cgo linux,arm64 LDFLAGS: -Wl,-rpath,${SRCDIR}/lib/linux_arm64
#cgo windows,amd64 LDFLAGS: -L${SRCDIR}/lib/windows_amd64 -lsharpi
*/
import "C"
