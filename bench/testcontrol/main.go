// A control server for two tailscaled without the Internet: the test control server of Tailscale's own
// module, which admits every node, and a relay with STUN for their map.
//
//	testcontrol ADDRESS [OWN=ALIAS...]
//
// The control server is at http://ADDRESS:3340. A node with the address OWN is announced to the
// others with the address ALIAS. It ends with its stdin.
package main

import (
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"tailscale.com/derp/derpserver"
	"tailscale.com/net/stun"
	"tailscale.com/tailcfg"
	"tailscale.com/tstest/integration/testcontrol"
	"tailscale.com/types/key"
	"tailscale.com/types/logger"
)

const (
	controlPort = 3340
	relayPort   = 3341
	stunPort    = 3478
)

func main() {
	if len(os.Args) < 2 {
		log.Fatal("usage: testcontrol ADDRESS [OWN=CALLED...]")
	}
	address := os.Args[1]
	serveRelay(address)
	serveStun(address, pairs(os.Args[2:]))
	serveControl(address)
	io.Copy(io.Discard, os.Stdin)
}

func serveControl(address string) {
	at := place(address, controlPort)
	control := &testcontrol.Server{
		Logf:             logger.Discard,
		DERPMap:          relays(address),
		ExplicitBaseURL:  "http://" + at,
		AllNodesSameUser: true,
		AllOnline:        true,
	}
	go func() { log.Fatal(http.Serve(listen(at), control)) }()
}

// Its certificate is httptest's; the map makes the nodes accept it.
func serveRelay(address string) {
	server := httptest.NewUnstartedServer(derpserver.Handler(derpserver.New(key.NewNode(), logger.Discard)))
	server.Listener.Close()
	server.Listener = listen(place(address, relayPort))
	// HTTP/1.1, because the relay's protocol is started by an upgrade.
	server.Config.TLSNextProto = make(map[string]func(*http.Server, *tls.Conn, http.Handler))
	server.StartTLS()
}

// Answers STUN requests with the address by which the other end reaches the client. Behind a link it
// differs from the client's own address.
func serveStun(address string, behind map[netip.Addr]netip.Addr) {
	socket, err := net.ListenPacket("udp4", place(address, stunPort))
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		for {
			var question [1500]byte
			len, from, err := socket.ReadFrom(question[:])
			if err != nil {
				log.Fatal(err)
			}
			id, err := stun.ParseBindingRequest(question[:len])
			if err != nil {
				continue
			}
			called := from.(*net.UDPAddr).AddrPort()
			if address, ok := behind[called.Addr()]; ok {
				called = netip.AddrPortFrom(address, called.Port())
			}
			socket.WriteTo(stun.Response(id, called), from)
		}
	}()
}

func relays(address string) *tailcfg.DERPMap {
	node := &tailcfg.DERPNode{
		Name:             "1a",
		RegionID:         1,
		HostName:         address,
		IPv4:             address,
		IPv6:             "none",
		STUNPort:         stunPort,
		DERPPort:         relayPort,
		InsecureForTests: true,
		STUNTestIP:       address,
	}
	region := &tailcfg.DERPRegion{RegionID: 1, RegionCode: "rig", Nodes: []*tailcfg.DERPNode{node}}
	return &tailcfg.DERPMap{Regions: map[int]*tailcfg.DERPRegion{1: region}}
}

func pairs(words []string) map[netip.Addr]netip.Addr {
	pairs := make(map[netip.Addr]netip.Addr)
	for _, word := range words {
		own, called, _ := strings.Cut(word, "=")
		pairs[netip.MustParseAddr(own)] = netip.MustParseAddr(called)
	}
	return pairs
}

func place(address string, port int) string {
	return net.JoinHostPort(address, strconv.Itoa(port))
}

func listen(at string) net.Listener {
	listener, err := net.Listen("tcp", at)
	if err != nil {
		log.Fatal(err)
	}
	return listener
}
