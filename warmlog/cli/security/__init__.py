"""What makes a broker secure before its first start: certificates, and an administrator."""
