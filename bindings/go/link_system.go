// SPDX-License-Identifier: MIT

//go:build sharpi_system

package sharpi

// The installed library, as pkg-config says: go build -tags sharpi_system.

/*
#cgo pkg-config: sharpi
*/
import "C"
