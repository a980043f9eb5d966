package schema

import "testing"

func TestFormats(t *testing.T) {
	for _, c := range []struct {
		name    string
		yes, no []string
	}{
		{"date", []string{"2024-02-29", "2000-02-29", "2023-12-31", "2023-04-30"}, []string{"2023-02-29", "1900-02-29", "2023-04-31", "2023-13-01",
			"2023-1-01", "2023-00-10"}},
		{"time", []string{"12:00:00Z", "23:59:59.123+05:30", "00:00:00z"}, []string{"24:00:00Z", "12:00Z", "12:00:00", "12:60:00Z", "12:00:00+24:00"}},
		{"date-time", []string{"2024-02-29T12:00:00Z", "2024-02-28t12:00:00.5-08:00"}, []string{"2024-02-30T12:00:00Z", "2024-02-28 12:00:00Z", "2024-02-28"}},
		{"duration", []string{"P1Y2M3DT4H5M6S", "PT36H", "P4W", "P1D", "PT1M"}, []string{"P", "PT", "P1YT", "P2D1Y", "P1Y2W", "PT1H2S", "4W"}},
		{"email", []string{"joe@example.com", `"joe bloggs"@example.com`, "joe@[127.0.0.1]", "joe@[IPv6:::1]", "te~st@x", "a.b@c.d"}, []string{"joe",
			".a@b.c", "a.@b.c", "a..b@c.d", "a@b=c.d", "a@[127.0.0.300]", "a b@c.d"}},
		{"idn-email", []string{"실례@실례.테스트"}, []string{"2962"}},
		{"hostname", []string{"www.example.com", "a", "a-b", "xn", "abc", "ab-c", "a--b", "abcd-e", "1.2", "a-bc", "abc-d"}, []string{"", "-a", "a-", "a_b",
			"ab--cd", "xn--X", "a..b", ".a", "a."}},
		{"ipv4", []string{"1.2.3.4", "255.255.255.255"}, []string{"256.1.1.1", "01.2.3.4", "1.2.3", "1.2.3.4.5"}},
		{"ipv6", []string{"::1", "::", "1:2:3:4:5:6:7:8", "::ffff:1.2.3.4", "1::8", "1:2:3:4:5:6:7::", "1::2:3:4:5:6:7"}, []string{"1", ":", "12345::",
			"1:2:3:4:5:6:7:8:9", "::1::", ":::", "1:2:3:4:5:6:7:8::", "::1%eth0"}},
		{"uuid", []string{"2EB8AA08-aa98-11ea-b4aa-73b441d16380"}, []string{"2eb8aa08aa9811eab4aa73b441d16380", "2eb8aa08-aa98-11ea-b4aa-73b441d1638"}},
		{"uri", []string{"http://a.b/c?d#e", "urn:x:y", "mailto:a@b", "ldap://[2001:db8::7]/c=GB?x?one", "http://a:80/", "file:///etc"}, []string{"//a.b/c",
			"abc", "http:// x", `\\x`, "http://a[", "bar,baz:foo", ":x", "http://a/<b>", "http://ü.de"}},
		{"uri-reference", []string{"", "abc", "/abc", "//x/y", "#frag", "http://a"}, []string{`\\x`, "#frag\\ment", "a b"}},
		{"iri", []string{"http://ƒøø.ßår/?∂éœ=πîx#πîüx"}, []string{"âππ", "http://2001:db8 x"}},
		{"iri-reference", []string{"âππ", "/âππ"}, []string{`\\x`}},
		{"uri-template", []string{"http://x/{a}/{b}", "x", "{?a,b*}", "{x:3}"}, []string{"http://x/{a", "{}", "a}"}},
		{"json-pointer", []string{"", "/a/b~0~1", "/"}, []string{"a", "/~", "/~2"}},
		{"relative-json-pointer", []string{"0", "1/a", "12#", "0/a~0"}, []string{"", "/a", "01", "-1", "0##"}},
	} {
		for _, text := range c.yes {
			if ok, err := formatPattern(c.name).Match(text, 1<<20); !ok || err != nil {
				t.Errorf("%s: %q does not match: %v", c.name, text, err)
			}
		}
		for _, text := range c.no {
			if ok, err := formatPattern(c.name).Match(text, 1<<20); ok || err != nil {
				t.Errorf("%s: %q matches: %v", c.name, text, err)
			}
		}
	}
}
