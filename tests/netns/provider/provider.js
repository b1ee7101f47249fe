// A real OpenID Connect provider whose users are in a file: ISSUER CERTIFICATE KEY USERS REDIRECT.
// Its pages let anybody log in by a user's name. Its keys are new at each start.
import { createPrivateKey, generateKeyPairSync, randomUUID } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { createServer } from 'node:https';
import { Provider } from 'oidc-provider';

const [issuer, cert, key, users, redirect] = process.argv.slice(2);
// Node.js 20 sometimes deadlocks where a generated key is exported and collected at once, so the key is read
// from its text.
const { privateKey } = generateKeyPairSync('rsa', {
  modulusLength: 2048,
  publicKeyEncoding: { type: 'spki', format: 'pem' },
  privateKeyEncoding: { type: 'pkcs8', format: 'pem' },
});
const signing = { ...createPrivateKey(privateKey).export({ format: 'jwk' }), kid: randomUUID(), use: 'sig', alg: 'RS256' };

const provider = new Provider(issuer, {
  clients: [{
    client_id: 'net', client_secret: 'hush', redirect_uris: [redirect],
    grant_types: ['authorization_code'], response_types: ['code'],
  }],
  jwks: { keys: [signing] },
  cookies: { keys: [randomUUID()] },
  pkce: { required: () => true },
  claims: {
    openid: ['sub'],
    email: ['email', 'email_verified'],
    profile: ['name', 'picture', 'preferred_username'],
    groups: ['groups'],
  },
  findAccount: (_, accountId) => ({
    accountId,
    claims: () => ({ sub: accountId, ...JSON.parse(readFileSync(users))[accountId] }),
  }),
});
const files = { cert: readFileSync(cert), key: readFileSync(key) };
createServer(files, provider.callback()).listen(Number(new URL(issuer).port));
