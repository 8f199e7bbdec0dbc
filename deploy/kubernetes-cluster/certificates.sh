#!/bin/sh
# Certificates with which etcd and the brokers know each other, as the Secrets that the manifests mount:
#     deploy/kubernetes-cluster/certificates.sh etcd-ca | kubectl apply --filename -
# The folder keeps the CA's key, with which this makes new certificates that the old ones accept: keep it safe, and run
# this again before they expire, a year later. Members of etcd and brokers read renewed files by themselves.
# Needs OpenSSL 3.0 or newer.
set -eu
umask 077
ca=${1:?usage: certificates.sh FOLDER}
mkdir -p "$ca"
made=$(mktemp -d)
trap 'rm -r "$made"' EXIT

[ -f "$ca/ca.key" ] || openssl req -x509 -newkey rsa:3072 -nodes -days 3650 -keyout "$ca/ca.key" -out "$ca/ca.pem" \
    -subj "/O=warmlog etcd CA" -addext keyUsage=critical,keyCertSign,cRLSign 2>/dev/null

issue() { # NAME [OPENSSL_OPTION...]
    name=$1
    shift
    openssl req -x509 -CA "$ca/ca.pem" -CAkey "$ca/ca.key" -newkey rsa:3072 -nodes -days 365 \
        -keyout "$made/$name.key" -out "$made/$name.pem" -addext basicConstraints=critical,CA:FALSE "$@" 2>/dev/null
}

names=DNS:localhost,IP:127.0.0.1
for number in 0 1 2; do
    for zone in '' .warmlog.svc .warmlog.svc.cluster.local; do
        names=$names,DNS:etcd-$number.etcd$zone
    done
done
# A member is also a client: of the other members, and, as etcd's JSON gateway, of itself. Neither certificate has a
# common name, which etcd would take for that of a user.
issue etcd -subj /O=etcd -addext extendedKeyUsage=serverAuth,clientAuth -addext "subjectAltName=$names"
issue broker -subj /O=warmlog -addext extendedKeyUsage=clientAuth

secret() { # NAME CERTIFICATE
    printf 'apiVersion: v1\nkind: Secret\nmetadata:\n  name: %s\n  namespace: warmlog\ndata:\n' "$1"
    printf '  ca.pem: %s\n' "$(base64 <"$ca/ca.pem" | tr -d '\n')"
    printf '  tls.pem: %s\n' "$(base64 <"$made/$2.pem" | tr -d '\n')"
    printf '  tls.key: %s\n' "$(base64 <"$made/$2.key" | tr -d '\n')"
}

secret etcd-server etcd
echo ---
secret etcd-client broker
