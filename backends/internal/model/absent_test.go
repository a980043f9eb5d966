package model

import "testing"

// TestFileType: what config.json says of the type of weights that are not there.
func TestFileType(t *testing.T) {
	for _, c := range []struct{ name, config, want string }{
		{"transformers 4", `{"torch_dtype": "float32"}`, "F32"},
		{"transformers 5", `{"dtype": "float32"}`, "F32"},
		{"the whole name", `{"torch_dtype": "torch.float32"}`, "F32"},
		{"of the text model", `{"text_config": {"dtype": "float32"}}`, "F32"},
		{"of the whole model first", `{"dtype": "bfloat16", "text_config": {"dtype": "float32"}}`, "BF16"},
		{"half precision", `{"dtype": "float16"}`, "BF16"},
		{"nothing", `{}`, "BF16"},
		{"null", `{"dtype": null, "torch_dtype": "float32"}`, "F32"},
		{"another form", `{"dtype": {"": "float32"}, "text_config": {"torch_dtype": "float32"}}`, "F32"},
	} {
		if got := fileType([]byte(c.config)); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}
