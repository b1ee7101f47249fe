// Command udprelay is Tailscale's own peer relay with one endpoint, for the load of
// `cargo run --release -p linerate-member --example peer_relay`.
//
//	go run ./udprelay PORT CLIENT CLIENT
//
// Clients are disco public keys in hexadecimal. It prints its own key, the network number and its
// port on one line, and relays until it is ended.
package main

import (
	"encoding/hex"
	"fmt"
	"log"
	"net/netip"
	"os"
	"strconv"

	"go4.org/mem"
	"tailscale.com/net/udprelay"
	"tailscale.com/types/key"
	"tailscale.com/types/views"
	"tailscale.com/util/usermetric"
)

func main() {
	if len(os.Args) != 4 {
		log.Fatal("usage: udprelay PORT CLIENT CLIENT")
	}
	port, err := strconv.ParseUint(os.Args[1], 10, 16)
	if err != nil {
		log.Fatal(err)
	}
	logf := func(string, ...any) {}
	server, err := udprelay.NewServer(logf, uint16(port), true, new(usermetric.Registry), nil)
	if err != nil {
		log.Fatal(err)
	}
	// Without an address it does not start; this one is not announced.
	at := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(port))
	server.SetStaticAddrPorts(views.SliceOf([]netip.AddrPort{at}))
	endpoint, err := server.AllocateEndpoint(client(os.Args[2]), client(os.Args[3]))
	if err != nil {
		log.Fatal(err)
	}
	raw := endpoint.ServerDisco.AppendTo(nil)
	fmt.Println(hex.EncodeToString(raw), endpoint.VNI, port)
	select {}
}

func client(text string) key.DiscoPublic {
	raw, err := hex.DecodeString(text)
	if err != nil || len(raw) != 32 {
		log.Fatalf("not a key: %s", text)
	}
	return key.DiscoPublicFromRaw32(mem.B(raw))
}
