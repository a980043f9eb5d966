package store

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/tinsmith/tinsmith/gateway/internal/durable"
)

// Disk makes durable what the journal, the commit log and the generation mark have written. A test puts itself in its place to know what a power cut would leave.
type Disk interface {
	// SyncFile makes what was written to a file durable. An error means that nobody knows what of it is.
	SyncFile(f *os.File) error
	// SyncFolder makes the names of the files in a folder durable.
	SyncFolder(dir string) error
}

func (o Options) disk() Disk {
	if o.Disk == nil {
		return systemDisk{}
	}
	return o.Disk
}

// systemDisk is the operating system's.
type systemDisk struct{}

func (systemDisk) SyncFile(f *os.File) error   { return unix.Fdatasync(int(f.Fd())) }
func (systemDisk) SyncFolder(dir string) error { return durable.SyncFolder(dir) }
