// Package modelfile knows what the files of a model directory may hold in place of what they should: both sides of the contract read such files. It knows no format of theirs.
package modelfile

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
)

// placeholderBytes is how much of a file Placeholder looks at.
const placeholderBytes = 1024

// pointer is a Git LFS pointer: https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md has version first, then keys in order of the alphabet.
var pointer = regexp.MustCompile(`^version https?://(git-lfs|hawser)\.github\.com/spec/v\d+\r?\n(?:[^\n]*\n)*?size (\d{1,19})\r?(\n|$)`)

// refusal is the beginning of the JSON in which model hubs say that there is no such file, or no access to it.
var refusal = regexp.MustCompile(`^\s*\{\s*"error"\s*:\s*"`)

// pages are the beginnings of web pages and of the XML in which object stores tell of errors.
var pages = [][]byte{[]byte("<!doctype"), []byte("<html"), []byte("<head"), []byte("<body"), []byte("<?xml")}

// Placeholder tells, by its beginning, that a file holds something that stands in for its content: a Git LFS pointer, a saved web page or the error message of a server. The error says so and what to do, without the file's name;
// nil for anything else, whether it is what it should be or not.
func Placeholder(content []byte) error {
	content = content[:min(len(content), placeholderBytes)]
	if m := pointer.FindSubmatch(content); m != nil {
		return fmt.Errorf("holds a Git LFS pointer in place of its %s bytes: run `git lfs pull` in its folder, or download the file again", m[2])
	}
	if refusal.Match(content) {
		return errors.New("holds the error message of a server in place of its content: download the file itself again (with a token, if its repository wants one)")
	}
	text := bytes.TrimLeft(bytes.TrimPrefix(content, []byte("\ufeff")), " \t\r\n")
	for _, p := range pages {
		if len(text) >= len(p) && bytes.EqualFold(text[:len(p)], p) {
			return errors.New("holds a web page in place of its content: download the file itself again (with a token, if its repository wants one)")
		}
	}
	return nil
}
