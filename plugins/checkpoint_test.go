package plugins

import (
	"strings"
	"testing"
)

// TestManifestSeal changes every bit of a manifest's text: what still reads as one is refused.
func TestManifestSeal(t *testing.T) {
	m := Manifest{Scope: "weights", BaseModel: "0000000000000000", Rank: 8, Step: 3, Metadata: map[string]string{"k": noSeal}, SHA256: map[string]string{AdapterWeightsFile: noSeal}}
	text, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseManifest(text)
	if err != nil || got.Rank != 8 || got.Metadata["k"] != noSeal || got.Seal == noSeal {
		t.Fatalf("got %+v, %v", got, err)
	}
	for i := range text {
		for bit := range 8 {
			text[i] ^= 1 << bit
			if _, err := ParseManifest(text); err == nil {
				t.Errorf("with bit %d of byte %d flipped it is accepted: %.40q", bit, i, text[max(0, i-20):])
			}
			text[i] ^= 1 << bit
		}
	}
	if _, err := ParseManifest(text[:len(text)/2]); err == nil {
		t.Error("a half is accepted")
	}
}

// TestManifestOfOlderVersions: those have no seal.
func TestManifestOfOlderVersions(t *testing.T) {
	if m, err := ParseManifest([]byte(`{"format": 1, "scope": "weights", "rank": 4}`)); err != nil || m.Rank != 4 {
		t.Errorf("got %+v, %v", m, err)
	}
	for _, text := range []string{`{"format": 2, "rank": 4}`, `{"format": 2, "rank": 4, "seal": ""}`, `{"rank": 4}`} {
		if _, err := ParseManifest([]byte(text)); err == nil || !strings.Contains(err.Error(), ManifestFile) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
