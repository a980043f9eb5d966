package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// walEnd says why SQLite's write-ahead log is read only in part: "" if nothing follows what is whole. The form is that of SQLite's file format: a header of 32 bytes, and frames of 24 bytes and a page; a checksum over all that
// comes before is in every frame, and the header's salt tells the frames of this life of the file from those of earlier ones.
func walEnd(path string) (string, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "it is missing", nil
	}
	if err != nil {
		return "", err
	}
	const header, frame = 32, 24
	if len(b) < header {
		return fmt.Sprintf("it has only %d bytes", len(b)), nil
	}
	var order binary.ByteOrder = binary.LittleEndian
	if b[3]&1 == 1 {
		order = binary.BigEndian
	}
	var s0, s1 uint32
	add := func(b []byte) {
		for ; len(b) >= 8; b = b[8:] {
			s0 += order.Uint32(b) + s1
			s1 += order.Uint32(b[4:]) + s0
		}
	}
	fits := func(b []byte) bool { return binary.BigEndian.Uint32(b) == s0 && binary.BigEndian.Uint32(b[4:]) == s1 }
	page := int(binary.BigEndian.Uint32(b[8:]))
	if add(b[:24]); !fits(b[24:]) || page < 512 || page > 65536 {
		return "its header is damaged", nil
	}
	salt := string(b[16:24])
	bad := 0
	for n := 1; len(b) >= header+n*(frame+page); n++ {
		f := b[header+(n-1)*(frame+page):][:frame+page]
		if string(f[8:16]) != salt {
			continue
		}
		if bad > 0 {
			return fmt.Sprintf("frame %d is damaged, and others follow it", bad), nil
		}
		add(f[:8])
		add(f[frame:])
		if !fits(f[16:24]) {
			bad = n
		}
	}
	if bad > 0 {
		return fmt.Sprintf("frame %d is damaged", bad), nil
	}
	return "", nil
}
