package plugins

import (
	"io"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/tinsmith/tinsmith/plugins/backendpb"
	"github.com/tinsmith/tinsmith/plugins/transfer"
)

func TestListenArguments(t *testing.T) {
	for _, c := range []struct {
		name, arguments string
		want            string // of the refusal; "": none
	}{
		{"on this machine", "--listen 127.0.0.1:0 --data d", ""},
		{"with everything", "--listen :7000 --data d --tls-cert c --tls-key k --client-ca a --model /m --model /n --model hf://org/m@v1 --lease 30s --keep-mib 0 --drain 4m", ""},
		{"no address", "--data d", "missing: --listen"},
		{"no folder", "--listen 127.0.0.1:0", "missing: --data"},
		{"half of TLS", "--listen :7000 --data d --tls-cert c", "missing: --tls-key, --client-ca"},
		{"too much kept", "--listen :7000 --data d --keep-mib -1", "--keep-mib: -1"},
		{"a mistyped option", "--listen :7000 --data d --modell x", "modell"},
		{"a word", "--listen :7000 --data d now", `"now"`},
		{"no duration", "--listen :7000 --data d --lease 30", "lease"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o, err := ListenArguments(strings.Fields(c.arguments), io.Discard)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %+v, %v; want %q", o, err, c.want)
			}
			if c.name == "with everything" && (len(o.Models) != 3 || o.Models[1] != "/n" || o.Models[2] != "hf://org/m@v1" || o.Keep != 0 || o.Expiry.Seconds() != 30 || o.Drain.Minutes() != 4 || o.TLS != TLSFiles{"c", "k", "a"}) {
				t.Errorf("read %+v", o)
			}
		})
	}
	for _, c := range []struct {
		name string
		o    ListenOptions
		want string
	}{
		{"a short lease", ListenOptions{Expiry: 1}, "lease: 1ns"},
		{"a negative bound", ListenOptions{Keep: -1}, "keep: -1"},
		{"a relative model", ListenOptions{Models: []string{"m"}}, `model: "m"`},
		{"files that are not there", ListenOptions{TLS: TLSFiles{"c", "k", "a"}}, "tls: certificate c"},
	} {
		c.o.Listen, c.o.Data = "127.0.0.1:0", t.TempDir()
		if _, err := Listen(nil, c.o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// Whatever a message about files holds, only a list within the bounds comes out of it.
func FuzzFileList(f *testing.F) {
	good, err := proto.Marshal(listToPB([]transfer.File{{Name: "a", Size: 1}}))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good, int64(0))
	f.Add([]byte{}, int64(-1))
	f.Fuzz(func(t *testing.T, raw []byte, index int64) {
		var m backendpb.FileList
		if proto.Unmarshal(raw, &m) != nil {
			return
		}
		files, err := listFromPB(&m)
		if err != nil {
			return
		}
		if len(files) > transfer.MaxFiles || len(files) != len(m.GetFiles()) {
			t.Fatalf("%d files of %d", len(files), len(m.GetFiles()))
		}
		if wanted, err := indicesFromPB(files, []int64{index}); err == nil && (wanted[0] < 0 || wanted[0] >= len(files)) {
			t.Errorf("index %d of %d files was accepted", index, len(files))
		}
	})
}
