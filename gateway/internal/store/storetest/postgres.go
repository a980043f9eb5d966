// Package storetest gives tests the PostgreSQL database of TINSMITH_POSTGRES. It knows no store: the tests of the store itself use it too.
package storetest

import (
	"context"
	"crypto/rand"
	"database/sql"
	"net/url"
	"os"
	"strings"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver
)

// Schema makes an empty schema in the database of TINSMITH_POSTGRES, which is a URL, and gives the URL that selects it. It is dropped with the test, which is skipped without that variable.
func Schema(t testing.TB) string {
	t.Helper()
	database, err := url.Parse(os.Getenv("TINSMITH_POSTGRES"))
	if err != nil || database.Scheme == "" {
		t.Skip("TINSMITH_POSTGRES is not set to the URL of a PostgreSQL database, in which the tests may make schemas")
	}
	schema := "tinsmith_test_" + strings.ToLower(rand.Text())
	execute := func(text string) error {
		db, err := sql.Open("pgx", database.String())
		if err != nil {
			return err
		}
		defer db.Close()
		_, err = db.ExecContext(context.Background(), text) // also when the test's own has ended
		return err
	}
	if err := execute("CREATE SCHEMA " + schema); err != nil {
		t.Fatalf("make a schema: %v", err)
	}
	t.Cleanup(func() {
		if err := execute("DROP SCHEMA " + schema + " CASCADE"); err != nil {
			t.Errorf("drop a schema: %v", err)
		}
	})
	selected := *database
	query := selected.Query()
	query.Set("search_path", schema)
	selected.RawQuery = query.Encode()
	return selected.String()
}
